package machine

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
)

func init() {
	verbs["queue"] = func(_ *script, a args) (Op, Message) {
		return OpQueue, &QueueSettings{
			Queue: a.word(0), MaxReady: a.number(a.option("ready", "0")), Retention: a.duration("retention"),
			MaxRunning: a.number(a.option("running", "0")), MaxCrashes: a.number(a.option("crashes", "0")),
		}
	}
	verbs["submit"] = func(_ *script, a args) (Op, Message) {
		c := &Submit{Queue: a.word(0)}
		for _, w := range a.words[1:] {
			if strings.Contains(w, "=") {
				continue
			}
			c.Tasks = append(c.Tasks, TaskSpec{
				Payload: []byte(w), Delay: a.duration("delay"), Priority: uint8(a.number(a.option("priority", "0"))), Deadline: a.duration("deadline"),
				Unique: a.option("unique", ""), Window: a.duration("window"), OrderKey: a.option("order", ""),
			})
		}
		return OpSubmit, c
	}
	verbs["want"] = func(_ *script, a args) (Op, Message) {
		return OpWant, &Want{Queue: a.word(0), N: a.number(a.word(1))}
	}
	verbs["finish"] = func(_ *script, a args) (Op, Message) {
		c := &Finish{Queue: a.word(0)}
		for _, w := range a.words[2:] {
			if strings.Contains(w, "=") {
				continue
			}
			id, claim, _ := strings.Cut(w, ":")
			c.Ends = append(c.Ends, End{
				ID: TaskID(a.number(id)), Claim: Token(a.number(claim)), How: ends[a.word(1)], Delay: a.duration("delay"),
				Err: a.option("err", ""), Result: []byte(a.option("result", "")), Checkpoint: []byte(a.option("checkpoint", "")),
			})
		}
		return OpFinish, c
	}
	verbs["drop"] = func(_ *script, a args) (Op, Message) {
		return OpCancelTask, &CancelTask{ID: TaskID(a.number(a.word(0))), Reason: a.option("reason", "")}
	}
	answers[OpSubmit] = func(s *script, r Result) string {
		var b SubmitAnswer
		require.NoError(s.t, Decode(r.Body, &b))
		if len(b.Duplicates) > 0 {
			return fmt.Sprintf("ids %d duplicates %d", b.IDs, b.Duplicates)
		}
		return fmt.Sprintf("ids %d", b.IDs)
	}
	answers[OpFinish] = func(s *script, r Result) string {
		var b FinishAnswer
		require.NoError(s.t, Decode(r.Body, &b))
		if len(b.Refused) == 0 {
			return ""
		}
		return fmt.Sprintf("refused %d", b.Refused)
	}
	answers[OpCancelTask] = func(s *script, r Result) string { return s.taskResult(r.Body) }
	told[EventAssigned] = func(s *script, e *Event) string { return s.assignment(e.Body) }
	told[EventTask] = func(s *script, e *Event) string { return s.taskResult(e.Body) }
	told[EventCancel] = func(_ *script, e *Event) string { return fmt.Sprint(e.N) }
	queries["task"] = func(s *script, a args) {
		s.show(&Query{Kind: QueryTask, N: a.number(a.word(1))}, s.taskResult)
	}
	queries["stats"] = func(s *script, a args) {
		s.show(&Query{Kind: QueryStats, Name: a.word(1)}, func(b []byte) string {
			var q QueueStats
			require.NoError(s.t, Decode(b, &q))
			return fmt.Sprintf("%+v", q)
		})
	}
	queries["claims"] = func(s *script, a args) {
		s.show(&Query{Kind: QueryClaims, Session: s.sessions[a.word(1)], Name: a.word(2)}, s.assignment)
	}
}

var ends = map[string]TaskEnd{"done": EndDone, "retry": EndRetry, "dead": EndDead, "discard": EndDiscard, "release": EndRelease, "bad": 9}

// show prints the answer to a query, its body through text.
func (s *script) show(q *Query, text func([]byte) string) {
	r := s.m.Query(q)
	if r.Code == OK {
		r.Body = []byte(text(r.Body))
	}
	s.printResult(Cmd{}, r)
}

func (s *script) taskResult(b []byte) string {
	var r TaskResult
	require.NoError(s.t, Decode(b, &r))
	text := fmt.Sprintf("%d %s attempts %d", r.ID, r.State, r.Attempts)
	for name, value := range map[string]string{"node": r.Node} {
		if value != "" {
			text += " " + name + " " + value
		}
	}
	if r.Err != "" {
		text += fmt.Sprintf(" err %q", r.Err)
	}
	if len(r.Value) > 0 {
		text += fmt.Sprintf(" value %q", r.Value)
	}
	return text
}

// assignment prints each task as id:claim, then what it carries.
func (s *script) assignment(b []byte) string {
	var all Assignment
	require.NoError(s.t, Decode(b, &all))
	text := fmt.Sprintf("want %d total %d", all.Want, all.Total)
	for _, x := range all.Tasks {
		text += fmt.Sprintf(", %d:%d %s attempt %d", x.ID, x.Claim, x.Payload, x.Attempt)
		if x.Lost > 0 {
			text += fmt.Sprintf(" lost %d", x.Lost)
		}
		if len(x.Checkpoint) > 0 {
			text += fmt.Sprintf(" checkpoint %s", x.Checkpoint)
		}
		if x.OrderKey != "" {
			text += " order " + x.OrderKey
		}
	}
	return text
}
