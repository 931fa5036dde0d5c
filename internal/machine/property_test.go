package machine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestAnyHistoryKeepsTheLaw drives a machine with whatever three owners, their
// late copies, time and leaders may do, and holds what they are told against the
// law: one holder of a name at a time (L1), consecutive tokens (L2), grants to open
// sessions only (L3), copies that change nothing (L4).
//
// Seen to fail: a grant without looking at holder (L1), a token that grows by two
// (L2), ended that grants while its session's waits still stand in line (L3),
// remember left out of once (L4).
func TestAnyHistoryKeepsTheLaw(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness(t)
		t.Repeat(map[string]func(*rapid.T){
			"open":    w.open,
			"acquire": w.acquire,
			"cancel":  w.cancel,
			"release": w.release,
			"close":   func(t *rapid.T) { w.send(t, OpCloseSession, &CloseSession{}) },
			"renew":   w.renew,
			"expire": func(t *rapid.T) {
				w.apply(t, Cmd{Op: OpExpire, Body: Encode(&Expire{Limit: 10, Grace: uint64(rapid.IntRange(0, 5).Draw(t, "grace"))})})
			},
			"copy": w.copy,
			"time": func(t *rapid.T) { w.clock += uint64(rapid.IntRange(0, 8).Draw(t, "ns")) },
			"term": func(*rapid.T) { w.term++ },
			"":     func(t *rapid.T) { require.NoError(t, w.m.Check()) },
		})
	})
}

// witness knows only what owners are told.
type witness struct {
	m        *Machine
	clock    uint64
	term     uint64
	sessions []SessionID
	seqs     map[SessionID]uint64
	sent     []Cmd
	answered map[HoldRef]Result
	closed   map[SessionID]bool
	holder   map[string]HoldRef
	asked    map[HoldRef]string // the name that an Acquire asked for
	last     map[string]Token
	nonce    uint64
}

func newWitness(t *rapid.T) *witness {
	w := &witness{
		m: New(), term: 1, seqs: map[SessionID]uint64{}, answered: map[HoldRef]Result{}, closed: map[SessionID]bool{},
		holder: map[string]HoldRef{}, asked: map[HoldRef]string{}, last: map[string]Token{},
	}
	for range 3 {
		w.open(t)
	}
	return w
}

func (w *witness) open(t *rapid.T) {
	w.nonce++
	if len(w.sessions) > 8 {
		t.Skip("enough")
	}
	r := w.apply(t, Cmd{Op: OpOpenSession, Body: Encode(&OpenSession{TTL: 20, Node: "n", Nonce: w.nonce})})
	w.sessions = append(w.sessions, SessionID(r.N))
}

func (w *witness) send(t *rapid.T, op Op, body Message) {
	s := rapid.SampledFrom(w.sessions).Draw(t, "session")
	w.sendAs(t, s, op, body)
}

func (w *witness) sendAs(t *rapid.T, s SessionID, op Op, body Message) {
	w.seqs[s]++
	c := Cmd{Session: s, Seq: w.seqs[s], Op: op, Body: Encode(body)}
	if rapid.Bool().Draw(t, "acknowledge") {
		c.Floor = uint64(rapid.IntRange(0, int(c.Seq)).Draw(t, "floor"))
		c.Done = []uint64{uint64(rapid.IntRange(1, int(c.Seq)).Draw(t, "done"))}
		if c.Done[0] == c.Seq {
			c.Done = nil
		}
	}
	if a, ok := body.(*Acquire); ok {
		w.asked[HoldRef{s, c.Seq}] = fmt.Sprint(a.Space, a.Name)
	}
	w.sent = append(w.sent, c)
	if rapid.IntRange(0, 9).Draw(t, "fate") == 0 {
		return // lost, or late: a copy of it may come yet
	}
	w.apply(t, c)
}

func (w *witness) acquire(t *rapid.T) {
	a := &Acquire{
		Space: Space(rapid.IntRange(1, 2).Draw(t, "space")), Name: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name"),
		Try: rapid.IntRange(0, 4).Draw(t, "try") == 0, LockDelay: uint64(rapid.IntRange(0, 9).Draw(t, "delay")),
		Score: uint64(rapid.IntRange(0, 2).Draw(t, "score")),
	}
	if h, ok := w.holder[fmt.Sprint(1, "x")]; ok && rapid.Bool().Draw(t, "under") {
		a.Lineage = []HoldRef{h}
	}
	w.send(t, OpAcquire, a)
}

func (w *witness) target(t *rapid.T) (s SessionID, seq uint64, space Space, name string) {
	s = rapid.SampledFrom(w.sessions).Draw(t, "session")
	seq = uint64(rapid.IntRange(1, int(w.seqs[s])+2).Draw(t, "target"))
	space = Space(rapid.IntRange(1, 2).Draw(t, "space"))
	return s, seq, space, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name")
}

func (w *witness) cancel(t *rapid.T) {
	s, seq, space, name := w.target(t)
	w.sendAs(t, s, OpCancelWait, &CancelWait{space, name, seq})
}

func (w *witness) release(t *rapid.T) {
	s, seq, space, name := w.target(t)
	if h, ok := w.holder[fmt.Sprint(space, name)]; ok && rapid.IntRange(0, 3).Draw(t, "own") > 0 {
		s, seq = h.Session, h.Seq
	}
	w.sendAs(t, s, OpRelease, &Release{space, name, seq, w.last[fmt.Sprint(space, name)]})
}

func (w *witness) renew(t *rapid.T) {
	w.apply(t, Cmd{Op: OpKeepAlive, Body: Encode(&KeepAlive{Sessions: w.sessions[rapid.IntRange(0, len(w.sessions)-1).Draw(t, "from"):]})})
}

// copy delivers a command that was sent before once more: it changes nothing but
// what forgets answers, and tells nobody anything new.
func (w *witness) copy(t *rapid.T) {
	if len(w.sent) == 0 {
		t.Skip("nothing sent")
	}
	c := rapid.SampledFrom(w.sent).Draw(t, "copy")
	if first, ok := w.answered[HoldRef{c.Session, c.Seq}]; ok {
		locks := Encode(locksOnly{w.m})
		due, some := w.m.NextDue()
		r := w.apply(t, c)
		if r.Code != Stale && r.Code != NoSession && r.Code != Cancelled {
			require.Equal(t, first, r)
		}
		if !some || due > w.clock {
			require.Equal(t, locks, Encode(locksOnly{w.m}), "a copy changed the locks")
		}
		return
	}
	w.apply(t, c)
}

type locksOnly struct{ m *Machine }

func (l locksOnly) fields(k *coder) { l.m.locks.fields(k) }

func (w *witness) apply(t *rapid.T, c Cmd) Result {
	out, err := w.m.Apply(w.m.applied+1, w.term, AppendEntry(nil, Stamp{Clock: w.clock}, [][]byte{Encode(&c)}))
	require.NoError(t, err)
	r := out.Answers[0].Result
	me := HoldRef{c.Session, c.Seq}
	if _, again := w.answered[me]; !again && c.Session != 0 && r.Code != Stale && r.Code != NoSession {
		w.answered[me] = r
		w.told(t, c, r)
	}
	for i := range out.Events {
		w.event(t, &out.Events[i])
	}
	return r
}

// told takes in an answer that was not given before.
func (w *witness) told(t *rapid.T, c Cmd, r Result) {
	var name string
	switch {
	case c.Op == OpAcquire && r.Code == OK:
		w.granted(t, HoldRef{c.Session, c.Seq}, r.Token)
	case c.Op == OpRelease && r.Code == OK:
		var b Release
		require.NoError(t, Decode(c.Body, &b))
		name = fmt.Sprint(b.Space, b.Name)
		require.Equal(t, HoldRef{c.Session, b.Target}, w.holder[name])
	case c.Op == OpCancelWait && r.Code == OK:
		var b CancelWait
		require.NoError(t, Decode(c.Body, &b))
		name = fmt.Sprint(b.Space, b.Name)
		require.Equal(t, HoldRef{c.Session, b.Target}, w.holder[name])
	}
	delete(w.holder, name)
}

func (w *witness) event(t *rapid.T, e *Event) {
	switch e.Kind {
	case EventClosed:
		w.closed[e.Session] = true
		for name, h := range w.holder {
			if h.Session == e.Session {
				delete(w.holder, name)
			}
		}
	case EventGranted:
		w.granted(t, HoldRef{e.Session, e.Seq}, e.Token)
	}
}

func (w *witness) granted(t *rapid.T, ref HoldRef, token Token) {
	name := w.asked[ref]
	require.NotContains(t, w.holder, name, "L1: a second holder")
	require.Equal(t, w.last[name]+1, token, "L2: tokens are not consecutive")
	require.False(t, w.closed[ref.Session], "L3: a closed session was granted")
	w.holder[name], w.last[name] = ref, token
}
