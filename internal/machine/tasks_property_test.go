package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAnyHistoryOfTasksKeepsTheLaw drives the ledger with whatever submitters,
// workers, time and lost sessions may do, and holds what they are told against the
// law: a task is given to one open session at a time, under a claim that no other
// had (T1, L3); an end under another claim is refused; nothing is given beyond what
// was wanted; tasks of one order key do not run beside one another and start in the
// order of their submits; a task ends once, and none is lost (T2).
//
// Seen to fail: finish without a look at the claim or at the session, ended that
// leaves the claims, advance called for a retry, a claim given twice, want not
// counted down, an attempt given back after a loss, a worker left in the ring by
// ended, a second suspect for one session, no new look at a queue whose cap is free.
func TestAnyHistoryOfTasksKeepsTheLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &clerk{m: New(), known: map[TaskID]*clerkTask{}, want: map[SessionID]uint64{}, seqs: map[SessionID]uint64{}}
		for _, begin := range []func(*rapid.T){w.open, w.open, w.submit, w.submit, w.wish, w.wish} {
			begin(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"open":            w.open,
			"submit":          w.submit,
			"wish":            w.wish,
			"wish more":       w.wish,
			"finish":          w.finish,
			"finish more":     w.finish,
			"finish yet more": w.finish,
			"cancel":          w.cancel,
			"close":           func(t *rapid.T) { w.send(t, OpCloseSession, &CloseSession{}) },
			"renew": func(t *rapid.T) {
				w.apply(t, Cmd{Op: OpKeepAlive, Body: Encode(&KeepAlive{Sessions: w.sessions[rapid.IntRange(0, len(w.sessions)-1).Draw(t, "from"):]})})
			},
			"expire": func(t *rapid.T) { w.apply(t, Cmd{Op: OpExpire, Body: Encode(&Expire{Limit: 3})}) },
			"time":   w.time,
			"set": func(t *rapid.T) {
				w.send(t, OpQueue, &QueueSettings{Queue: "q", MaxRunning: uint64(rapid.IntRange(0, 4).Draw(t, "running")), MaxCrashes: uint64(rapid.IntRange(1, 3).Draw(t, "crashes"))})
			},
			"restore": func(t *rapid.T) {
				m := New()
				require.NoError(t, m.Restore(w.m.Encode()))
				require.Equal(t, w.m.Digest(), m.Digest())
				w.m = m
			},
			"": w.audit,
		})
	})
}

// clerk knows only what submitters and workers are told.
type clerk struct {
	m        *Machine
	clock    uint64
	nonce    uint64
	sessions []SessionID
	seqs     map[SessionID]uint64
	want     map[SessionID]uint64
	known    map[TaskID]*clerkTask
	ids      []TaskID
	lastID   TaskID
	claim    Token // the greatest seen
}

type clerkTask struct {
	order   string
	owner   SessionID
	claim   Token
	claims  []Token
	attempt uint64
	ended   bool
}

func (w *clerk) open(t *rapid.T) {
	if len(w.sessions) > 8 {
		t.Skip("enough")
	}
	w.nonce++
	out := w.apply(t, Cmd{Op: OpOpenSession, Body: Encode(&OpenSession{TTL: 20, Node: []string{"n", "m"}[w.nonce%2], Boot: w.nonce / 4, Nonce: w.nonce})})
	w.sessions = append(w.sessions, SessionID(out.N))
}

func (w *clerk) send(t *rapid.T, op Op, body Message) (SessionID, Result) {
	s := rapid.SampledFrom(w.sessions).Draw(t, "session")
	return s, w.sendAs(t, s, op, body)
}

func (w *clerk) sendAs(t *rapid.T, s SessionID, op Op, body Message) Result {
	w.seqs[s]++
	return w.apply(t, Cmd{Session: s, Seq: w.seqs[s], Op: op, Body: Encode(body)})
}

func (w *clerk) submit(t *rapid.T) {
	c := &Submit{Queue: "q"}
	for range rapid.IntRange(1, 4).Draw(t, "tasks") {
		c.Tasks = append(c.Tasks, TaskSpec{
			Payload: []byte("p"), Priority: uint8(rapid.IntRange(0, 2).Draw(t, "priority")), Delay: uint64(rapid.IntRange(0, 5).Draw(t, "delay")),
			Deadline: uint64(rapid.SampledFrom([]int{0, 0, 0, 5, 20}).Draw(t, "deadline")), OrderKey: rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "order"),
			Unique: rapid.SampledFrom([]string{"", "", "u", "v"}).Draw(t, "unique"), Window: uint64(rapid.SampledFrom([]int{0, 9}).Draw(t, "window")),
		})
	}
	s := rapid.SampledFrom(w.sessions).Draw(t, "session")
	w.seqs[s]++
	w.applyWith(t, Cmd{Session: s, Seq: w.seqs[s], Op: OpSubmit, Body: Encode(c)}, func(r Result) { w.submitted(t, c, r) })
}

func (w *clerk) submitted(t *rapid.T, c *Submit, r Result) {
	if r.Code != OK {
		require.Equal(t, NoSession, r.Code)
		return
	}
	var a SubmitAnswer
	require.NoError(t, Decode(r.Body, &a))
	twice := map[uint64]bool{}
	for _, i := range a.Duplicates {
		twice[i] = true
		require.NotEmpty(t, c.Tasks[i].Unique)
	}
	for i, id := range a.IDs {
		if !twice[uint64(i)] {
			require.Greater(t, id, w.lastID)
			w.lastID, w.ids = id, append(w.ids, id)
			w.known[id] = &clerkTask{order: c.Tasks[i].OrderKey}
		}
	}
}

func (w *clerk) wish(t *rapid.T) {
	n := uint64(rapid.IntRange(0, 4).Draw(t, "n"))
	s := rapid.SampledFrom(w.sessions).Draw(t, "session")
	w.want[s] = n
	w.sendAs(t, s, OpWant, &Want{Queue: "q", N: n})
}

// finish ends a task under its current claim or under an older one.
func (w *clerk) finish(t *rapid.T) {
	if len(w.ids) == 0 {
		t.Skip("no task")
	}
	id := rapid.SampledFrom(w.ids).Draw(t, "task")
	x := w.known[id]
	s, claim := x.owner, x.claim
	if len(x.claims) > 0 && rapid.IntRange(0, 3).Draw(t, "stale") == 0 {
		claim = rapid.SampledFrom(x.claims).Draw(t, "claim")
	}
	if s == 0 || rapid.IntRange(0, 5).Draw(t, "other") == 0 {
		s = rapid.SampledFrom(w.sessions).Draw(t, "session")
	}
	how := TaskEnd(rapid.IntRange(1, 5).Draw(t, "how"))
	current := x.owner == s && s != 0 && x.claim == claim
	w.seqs[s]++
	c := &Finish{Queue: "q", Ends: []End{{ID: id, Claim: claim, How: how, Delay: uint64(rapid.IntRange(0, 3).Draw(t, "delay"))}}}
	w.applyWith(t, Cmd{Session: s, Seq: w.seqs[s], Op: OpFinish, Body: Encode(c)}, func(r Result) {
		if r.Code == NoSession {
			return
		}
		var a FinishAnswer
		require.NoError(t, Decode(r.Body, &a))
		require.Equal(t, current, len(a.Refused) == 0, "T1: task %d claim %d of session %d, which has claim %d of session %d", id, claim, s, x.claim, x.owner)
		if current {
			x.owner = 0
			if how == EndRelease {
				x.attempt--
			}
		}
	})
}

func (w *clerk) cancel(t *rapid.T) {
	if len(w.ids) == 0 {
		t.Skip("no task")
	}
	w.send(t, OpCancelTask, &CancelTask{ID: rapid.SampledFrom(w.ids).Draw(t, "task")})
}

func (w *clerk) apply(t *rapid.T, c Cmd) Result { return w.applyWith(t, c, func(Result) {}) }

// applyWith hears the answer before the events, as they may depend on it.
func (w *clerk) applyWith(t *rapid.T, c Cmd, answered func(Result)) Result {
	out, err := w.m.Apply(w.m.applied+1, 1, AppendEntry(nil, Stamp{Clock: w.clock}, [][]byte{Encode(&c)}))
	require.NoError(t, err)
	r := out.Answers[0].Result
	answered(r)
	w.hear(t, c.Op == OpCloseSession, &out)
	return r
}

// time passes in an entry of its own, or the clerk would have to know what is due.
func (w *clerk) time(t *rapid.T) {
	w.clock += uint64(rapid.SampledFrom([]int{1, 4, 9, 23}).Draw(t, "ns"))
	w.apply(t, Cmd{Op: OpTick})
}

func (w *clerk) hear(t *rapid.T, graceful bool, out *Outcome) {
	for i := range out.Events {
		switch e := &out.Events[i]; e.Kind {
		case EventClosed:
			delete(w.want, e.Session)
			for _, x := range w.known {
				if x.owner == e.Session {
					x.owner = 0
					if graceful {
						x.attempt--
					}
				}
			}
		case EventTask:
			x := w.known[TaskID(e.N)]
			require.False(t, x.ended, "task %d ended twice", e.N)
			x.ended, x.owner = true, 0
		case EventAssigned:
			w.assigned(t, e)
		}
	}
}

func (w *clerk) assigned(t *rapid.T, e *Event) {
	var a Assignment
	require.NoError(t, Decode(e.Body, &a))
	require.NotNil(t, w.m.sessions.open(e.Session), "L3")
	require.GreaterOrEqual(t, w.want[e.Session], uint64(len(a.Tasks)), "more than was wanted")
	w.want[e.Session] -= uint64(len(a.Tasks))
	require.Equal(t, w.want[e.Session], a.Want)
	for i := range a.Tasks {
		g := &a.Tasks[i]
		x := w.known[g.ID]
		require.False(t, x.ended, "task %d is given out after its end", g.ID)
		require.Zero(t, x.owner, "T1: task %d is given to two", g.ID)
		for _, claim := range x.claims {
			require.Greater(t, g.Claim, claim, "T1")
		}
		require.Equal(t, x.attempt+1, g.Attempt)
		for id, other := range w.known {
			if other != x && x.order != "" && other.order == x.order && !other.ended {
				require.Zero(t, other.owner, "tasks %d and %d of one order run together", g.ID, id)
				require.Greater(t, id, g.ID, "task %d overtakes %d of its order", g.ID, id)
			}
		}
		x.owner, x.claim, x.claims, x.attempt = e.Session, g.Claim, append(x.claims, g.Claim), g.Attempt
	}
}

// audit asks the machine for every task that was ever submitted.
func (w *clerk) audit(t *rapid.T) {
	require.NoError(t, w.m.Check())
	seen := map[Token]bool{}
	for _, id := range w.ids {
		r := w.m.Query(&Query{Kind: QueryTask, N: uint64(id)})
		require.Equal(t, OK, r.Code, "T2: task %d is lost", id)
		var res TaskResult
		require.NoError(t, Decode(r.Body, &res))
		x := w.known[id]
		require.Equal(t, x.ended, res.State != "ready" && res.State != "scheduled" && res.State != "running", "task %d is %s", id, res.State)
		require.Equal(t, x.owner != 0, res.State == "running", "task %d is %s", id, res.State)
		for _, claim := range x.claims {
			require.False(t, seen[claim], "T1: two tasks had claim %d", claim)
			seen[claim] = true
		}
	}
}
