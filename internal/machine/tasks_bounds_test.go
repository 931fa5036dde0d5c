package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// desk is one session that submits and works.
type desk struct {
	*load
	s   SessionID
	seq uint64
}

func newDesk(t *testing.T) *desk {
	d := &desk{load: newLoad(t)}
	d.s = d.open(1)[0]
	return d
}

func (d *desk) do(op Op, body Message) Outcome {
	d.seq++
	d.add(Cmd{Session: d.s, Seq: d.seq, Floor: d.seq, Op: op}, body)
	out := d.apply(d.entry())
	require.NoError(d.tb, d.m.Check())
	return out
}

func (d *desk) claims() (a Assignment) {
	require.NoError(d.tb, Decode(d.m.Query(&Query{Kind: QueryClaims, Session: d.s, Name: "q"}).Body, &a))
	return a
}

// Claims must fit one message, or a worker that lost the news of them could never ask.
func TestAWorkerIsGivenWhatFitsOneMessage(t *testing.T) {
	d := newDesk(t)
	for range 6 {
		r := d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{{Payload: make([]byte, 1<<20)}}}).Answers[0].Result
		require.Equal(t, OK, r.Code)
	}
	out := d.do(OpWant, &Want{Queue: "q", N: 100})
	require.Less(t, len(out.Events[0].Body), 4<<20)
	given := d.claims()
	require.Len(t, given.Tasks, 2)
	require.EqualValues(t, 98, given.Want)
	first := given.Tasks[0]
	d.do(OpFinish, &Finish{Queue: "q", Ends: []End{{ID: first.ID, Claim: first.Claim, How: EndDone}}})
	require.Len(t, d.claims().Tasks, 2, "an end makes room for the next")
}

func TestAQueueHasBounds(t *testing.T) {
	long := strings.Repeat("k", 257)
	for name, c := range map[string]struct {
		spec TaskSpec
		ok   bool
	}{
		"largest payload": {TaskSpec{Payload: make([]byte, 1<<20)}, true},
		"larger payload":  {TaskSpec{Payload: make([]byte, 1<<20+1)}, false},
		"priority 9":      {TaskSpec{Priority: 9}, true},
		"priority 10":     {TaskSpec{Priority: 10}, false},
		"long order key":  {TaskSpec{OrderKey: long}, false},
		"long unique key": {TaskSpec{Unique: long}, false},
		"endless delay":   {TaskSpec{Delay: 1<<64 - 1, Deadline: 1<<64 - 1, Unique: "u", Window: 1<<64 - 1}, true},
	} {
		d := newDesk(t)
		good := TaskSpec{Payload: []byte("good")}
		r := d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{good, c.spec}}).Answers[0].Result
		require.Equal(t, c.ok, r.Code == OK, "%s: %s", name, r.Body)
		require.Equal(t, c.ok, len(d.m.tasks.byID) == 2, name)
		require.Equal(t, c.ok, len(d.m.tasks.byID) != 0, "%s: all or none", name)
	}
	d := newDesk(t)
	d.m.tasks.limit.Pending = 10
	require.Equal(t, OK, d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{{Payload: make([]byte, 10)}}}).Answers[0].Result.Code)
	require.Equal(t, Result{Code: Full, N: 10}, d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{{Payload: make([]byte, 1)}}}).Answers[0].Result)
}

// What is finished is forgotten from its oldest on: by number, and by bytes.
func TestFinishedTasksAreBounded(t *testing.T) {
	for _, limit := range []taskLimit{
		{Pending: 1 << 30, Finished: 3, Kept: 1 << 30, Claimed: 1 << 20},
		{Pending: 1 << 30, Finished: 100, Kept: 30, Claimed: 1 << 20},
	} {
		d := newDesk(t)
		d.m.tasks.limit = limit
		d.do(OpWant, &Want{Queue: "q", N: 100})
		var ids []TaskID
		for i := range 5 {
			d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{{Payload: []byte("p")}}})
			g := d.claims().Tasks[0]
			ids = append(ids, g.ID)
			d.do(OpFinish, &Finish{Queue: "q", Ends: []End{{ID: g.ID, Claim: g.Claim, How: EndDone, Result: fmt.Appendf(nil, "result %03d", i)}}})
		}
		for i, id := range ids {
			want := OK
			if i < 2 {
				want = NotFound
			}
			require.Equal(t, want, d.m.Query(&Query{Kind: QueryTask, N: uint64(id)}).Code, i)
		}
	}
}

func TestAnErrorTextIsCutAtARune(t *testing.T) {
	require.Equal(t, strings.Repeat("a", maxErr-1), cut(strings.Repeat("a", maxErr-1)+"ä"))
	require.Equal(t, "ä", cut("ä"))
}

func TestResultsAndCheckpointsAreBounded(t *testing.T) {
	d := newDesk(t)
	d.do(OpSubmit, &Submit{Queue: "q", Tasks: []TaskSpec{{Payload: []byte("p")}}})
	d.do(OpWant, &Want{Queue: "q", N: 1})
	g := d.claims().Tasks[0]
	for _, e := range []End{{Result: make([]byte, 1<<20+1)}, {Checkpoint: make([]byte, 256<<10+1)}} {
		e.ID, e.Claim, e.How = g.ID, g.Claim, EndRetry
		require.Equal(t, Invalid, d.do(OpFinish, &Finish{Queue: "q", Ends: []End{e}}).Answers[0].Result.Code)
		require.Equal(t, g, d.claims().Tasks[0])
	}
}
