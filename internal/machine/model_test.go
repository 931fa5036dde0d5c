package machine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCancelledAcquireNeverStays searches all orders in which the commands of one
// caller, with copies that come late, again or never, can reach the machine: an
// Acquire whose caller gave up (protocol 11) and a Release that is repeated
// (protocol 12), while another holds the name, releases it, and takes it again.
// Whatever the order: once the caller's CancelWait was applied, and once its
// Release was, it neither holds nor waits by that request, for ever; and a late
// Release frees nobody else's hold.
//
// Seen to fail: without the tombstone in cancelUnseen, with Release by token alone,
// and with answers forgotten before the sender said so.
func TestCancelledAcquireNeverStays(t *testing.T) {
	e := newExplorer(t)
	e.walk(nil)
	require.Greater(t, e.states, 1000, "the search has lost its space")
	t.Logf("%d states, %d steps", e.states, e.steps)
}

// move is one delivery to the machine.
type move struct {
	name   string
	cmd    Cmd
	copies int // how often it may be delivered
}

type explorer struct {
	t             *testing.T
	start         []byte
	moves         []move
	seen          map[string]bool
	states, steps int
}

func newExplorer(t *testing.T) *explorer {
	l := newLoad(t)
	ids := l.open(2)
	me, other := ids[0], ids[1]
	acquire := Encode(&Acquire{Space: SpaceLock, Name: "x"})
	cancel := func(target uint64) []byte {
		return Encode(&CancelWait{Space: SpaceLock, Name: "x", Target: target})
	}
	return &explorer{t: t, start: l.m.Encode(), seen: map[string]bool{}, moves: []move{
		{"acquire 1", Cmd{Session: me, Seq: 1, Op: OpAcquire, Body: acquire}, 2},
		{"cancel 1", Cmd{Session: me, Seq: 2, Op: OpCancelWait, Body: cancel(1)}, 2},
		{"acquire 3", Cmd{Session: me, Seq: 3, Floor: 1, Op: OpAcquire, Body: acquire}, 2},
		{"release 3", Cmd{Session: me, Seq: 4, Op: OpRelease}, 2}, // its body needs the token
		{"tick 5, 1 to 4 done", Cmd{Session: me, Seq: 5, Floor: 5, Op: OpCancelWait, Body: cancel(9)}, 1},
		{"other acquires", Cmd{Session: other, Seq: 1, Op: OpAcquire, Body: acquire}, 1},
		{"other releases", Cmd{Session: other, Seq: 2, Op: OpRelease}, 1},
	}}
}

// path is what was delivered so far, as places in moves.
func (e *explorer) walk(path []int) {
	m, facts := e.replay(path)
	bare := *m
	bare.applied, bare.hash = 0, 0 // what only counts the steps
	key := fmt.Sprintf("%x %v %v", bare.Digest(), e.counts(path), facts)
	if e.seen[key] {
		return
	}
	e.seen[key] = true
	e.states++
	for i := range e.moves {
		if e.allowed(i, path) {
			e.steps++
			e.walk(append(path[:len(path):len(path)], i))
		}
	}
}

func (e *explorer) counts(path []int) []int {
	counts := make([]int, len(e.moves))
	for _, i := range path {
		counts[i]++
	}
	return counts
}

// allowed keeps to what a client does: it acknowledges only what was answered, and
// releases only what it was granted.
func (e *explorer) allowed(i int, path []int) bool {
	n := e.counts(path)
	if n[i] >= e.moves[i].copies {
		return false
	}
	switch e.moves[i].name {
	case "release 3":
		m, _ := e.replay(path)
		return n[i] > 0 || holder(m) == 3
	case "tick 5, 1 to 4 done":
		return n[0] > 0 && n[1] > 0 && n[2] > 0 && n[3] > 0
	case "other releases":
		return n[5] > 0
	}
	return true
}

// facts are what the client was told.
type facts struct {
	cancelled, released bool
	token               Token // of acquire 3
}

// replay delivers a path to a fresh machine and checks after each step.
func (e *explorer) replay(path []int) (*Machine, facts) {
	m := New()
	require.NoError(e.t, m.Restore(e.start))
	var f facts
	for _, i := range path {
		c := e.moves[i].cmd
		switch e.moves[i].name {
		case "release 3":
			c.Body = Encode(&Release{Space: SpaceLock, Name: "x", Target: 3, Token: f.token})
		case "other releases":
			if r := m.sessions.open(2).requests[1]; r != nil {
				c.Body = Encode(&Release{Space: SpaceLock, Name: "x", Target: 1, Token: r.token})
			}
		}
		others := m.locks.named(SpaceLock, "x").holder
		out, err := m.Apply(m.applied+1, 1, AppendEntry(nil, Stamp{Clock: m.clock}, [][]byte{Encode(&c)}))
		require.NoError(e.t, err)
		code := out.Answers[0].Result.Code
		f.cancelled = f.cancelled || e.moves[i].name == "cancel 1"
		f.released = f.released || e.moves[i].name == "release 3" && code == OK
		if holder(m) == 3 {
			f.token = m.locks.named(SpaceLock, "x").holder.token
		}
		e.judge(m, f, path)
		if now := m.locks.named(SpaceLock, "x").holder; c.Session == 1 && others != nil && others.session.id == 2 {
			require.Same(e.t, others, now, "a command of session 1 freed the hold of session 2: %s", e.story(path))
		}
	}
	return m, f
}

func (e *explorer) judge(m *Machine, f facts, path []int) {
	require.NoError(e.t, m.Check(), "%s", e.story(path))
	mine := m.sessions.open(1).requests
	if f.cancelled {
		require.NotContains(e.t, mine, uint64(1), "%s", e.story(path))
	}
	if f.released {
		require.NotContains(e.t, mine, uint64(3), "%s", e.story(path))
	}
}

func (e *explorer) story(path []int) string {
	var names []string
	for _, i := range path {
		names = append(names, e.moves[i].name)
	}
	return strings.Join(names, "; ")
}

func holder(m *Machine) uint64 {
	if h := m.locks.named(SpaceLock, "x").holder; h != nil && h.session.id == 1 {
		return h.seq
	}
	return 0
}
