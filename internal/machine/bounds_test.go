package machine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// rig is a machine with sessions 1 to n on which single commands are tried.
type rig struct {
	*load
	ids []SessionID
}

func newRig(t *testing.T, sessions int) *rig {
	l := newLoad(t)
	return &rig{l, l.open(sessions)}
}

func (b *rig) do(c Cmd, body Message) (Result, []Event) {
	b.add(c, body)
	out := b.apply(b.entry())
	require.NoError(b.tb, b.m.Check())
	return out.Answers[0].Result, out.Events
}

func (b *rig) acquire(who int, seq uint64, name string, under ...HoldRef) Result {
	r, _ := b.do(Cmd{Session: b.ids[who], Seq: seq, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: name, Lineage: under})
	return r
}

func TestALineHasABound(t *testing.T) {
	b := newRig(t, 4)
	b.m.locks.limit.Waiters = 2
	require.Equal(t, OK, b.acquire(0, 1, "x").Code)
	require.Equal(t, Queued, b.acquire(1, 1, "x").Code)
	require.Equal(t, Queued, b.acquire(2, 1, "x").Code)
	require.Equal(t, Result{Code: Full, N: 2}, b.acquire(3, 1, "x"))
	require.Equal(t, OK, b.acquire(3, 2, "y").Code)
}

func TestSessionsHaveABound(t *testing.T) {
	b := newRig(t, 2)
	b.m.sessions.limit.Sessions = 2
	r, _ := b.do(Cmd{Op: OpOpenSession}, &OpenSession{TTL: 1, Node: "late"})
	require.Equal(t, Result{Code: Full, N: 2}, r)
	b.do(Cmd{Session: 1, Seq: 1, Op: OpCloseSession}, &CloseSession{})
	r, _ = b.do(Cmd{Op: OpOpenSession}, &OpenSession{TTL: 1, Node: "late"})
	require.Equal(t, OK, r.Code)
}

// What frees something is never refused for want of room (protocol 25).
func TestAFullWindowRefusesWhatTakesOnly(t *testing.T) {
	b := newRig(t, 2)
	b.m.sessions.limit.Outstanding = 3
	require.Equal(t, OK, b.acquire(1, 1, "z").Code)
	for seq, name := range []string{"", "x", "y", "z"} {
		if seq > 0 {
			b.acquire(0, uint64(seq), name)
		}
	}
	require.Equal(t, Result{Code: WindowFull, N: 3}, b.acquire(0, 4, "w"))
	r, _ := b.do(Cmd{Session: 1, Seq: 5, Op: OpRelease}, &Release{SpaceLock, "x", 1, 1})
	require.Equal(t, OK, r.Code)
	r, _ = b.do(Cmd{Session: 1, Seq: 5, Op: OpRelease}, &Release{SpaceLock, "x", 1, 1})
	require.Equal(t, NotFound, r.Code, "not remembered: its copy finds nothing left")
	r, _ = b.do(Cmd{Session: 1, Seq: 6, Op: OpCancelWait}, &CancelWait{SpaceLock, "z", 3})
	require.Equal(t, Cancelled, r.Code)
	for target := uint64(100); ; target++ { // tombstones have a bound of their own
		r, _ = b.do(Cmd{Session: 1, Seq: target + 1000, Op: OpCancelWait}, &CancelWait{SpaceLock, "z", target})
		if r.Code != Cancelled {
			break
		}
		require.Less(t, target, uint64(110))
	}
	require.Equal(t, WindowFull, r.Code)
	r, _ = b.do(Cmd{Session: 1, Seq: 2004, Floor: 4, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: "w"})
	require.Equal(t, WindowFull, r.Code, "three tombstones are left")
	r, _ = b.do(Cmd{Session: 1, Seq: 2005, Floor: 2000, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: "w"})
	require.Equal(t, OK, r.Code)
	r, _ = b.do(Cmd{Session: 1, Seq: 2004, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: "w"})
	require.Equal(t, Stale, r.Code, "a copy of what was refused is not let in later")
}

// A sender that acknowledges every other command leaves holes without end.
func TestHolesInAWindowHaveABound(t *testing.T) {
	var w window
	w.floor = 1
	for seq := uint64(2); seq < 1000; seq += 2 {
		w.acknowledge(0, []uint64{seq}, 10)
		require.LessOrEqual(t, len(w.done), 10)
		require.True(t, w.forgotten(seq))
	}
	require.True(t, w.forgotten(501))
	require.False(t, w.forgotten(997))
	w.acknowledge(1<<63, nil, 10)
	require.Empty(t, w.done)
}

func TestHistoryHasBothItsBounds(t *testing.T) {
	h := history{limit: historyLimit{Events: 100, Bytes: 1 << 20}}
	for rev := Rev(2); rev < 1000; rev++ {
		h.add(Event{Kind: EventLeader, Name: "boss", Rev: rev})
		require.LessOrEqual(t, len(h.events), 300, "what is forgotten is let go")
	}
	require.Len(t, h.kept(), 100)
	q := Query{Topic: TopicElection, Name: "boss", Rev: 898}
	require.Equal(t, Result{Code: Compacted, Rev: 899}, h.query(&q, 999))
	q.Rev = 899
	var l EventList
	require.NoError(t, Decode(h.query(&q, 999).Body, &l))
	require.Len(t, l.Events, 100)
	h.add(Event{Kind: EventLeader, Name: "boss", Rev: 1000, Body: make([]byte, 1<<20-50)})
	require.Less(t, len(h.kept()), 15)
}

func TestCompactForgetsWhatHasNoEventToo(t *testing.T) {
	b := newRig(t, 1)
	b.do(Cmd{Session: 1, Seq: 1, Op: OpAcquire}, &Acquire{Space: SpaceElection, Name: "boss"})
	a := &apply{m: b.m, out: &Outcome{}}
	for range 3 {
		a.change(Event{Kind: EventTask, Name: "queue", Last: true}) // observable, but not kept
	}
	require.Len(t, b.m.history.kept(), 1)
	r, _ := b.do(Cmd{Session: 1, Seq: 2, Op: OpCompact}, &Compact{Rev: 4})
	require.Equal(t, Result{Rev: 4}, r)
	require.Empty(t, b.m.history.kept())
	q := &Query{Kind: QueryHistory, Topic: TopicElection, Name: "boss", Rev: 3}
	require.Equal(t, Result{Code: Compacted, Rev: 4}, b.m.Query(q))
	q.Rev = 4
	require.Equal(t, OK, b.m.Query(q).Code)
	q.Topic = TopicTasks
	require.Equal(t, Result{Code: Compacted}, b.m.Query(q))
}

// Two ways on from each of 20 holds would be a million paths to nowhere: each hold
// is entered once.
func TestADeadlockIsFoundBesideManyPaths(t *testing.T) {
	const layers = 20
	b := newRig(t, layers+3)
	name := func(i int) string { return fmt.Sprintf("layer %02d", i) }
	for i := range layers + 1 {
		require.Equal(t, OK, b.acquire(i, 1, name(i)).Code)
	}
	for i := range layers {
		for seq := uint64(2); seq < 4; seq++ {
			require.Equal(t, Queued, b.acquire(i, seq, name(i+1), HoldRef{b.ids[i], 1}).Code)
		}
	}
	one, two := layers+1, layers+2
	b.acquire(one, 1, "x")
	b.acquire(two, 1, "y")
	b.acquire(one, 2, name(0), HoldRef{b.ids[one], 1}) // looked at first
	b.acquire(one, 3, "y", HoldRef{b.ids[one], 1})
	r := b.acquire(two, 2, "x", HoldRef{b.ids[two], 1})
	require.Equal(t, Deadlock, r.Code)
	var c Cycle
	require.NoError(t, Decode(r.Body, &c))
	require.Len(t, c.Edges, 2)
	for i, e := range c.Edges {
		require.Equal(t, e.Holder.Hold.Session, c.Edges[1-i].Waiter.Hold.Session)
	}
}

// A search that has looked at enough lets the wait in: timeouts solve what it missed.
func TestASearchForADeadlockHasABound(t *testing.T) {
	b := newRig(t, 3)
	b.m.locks.limit.Edges = 0
	b.acquire(0, 1, "x")
	b.acquire(1, 1, "y")
	b.acquire(0, 2, "y", HoldRef{b.ids[0], 1})
	require.Equal(t, Queued, b.acquire(1, 2, "x", HoldRef{b.ids[1], 1}).Code)
}

// What falls due between two entries happens at its own time, whichever part it
// belongs to (protocol 22).
func TestDueThingsHappenInTheOrderOfTheirTimes(t *testing.T) {
	b := newRig(t, 2)
	b.do(Cmd{Op: OpOpenSession}, &OpenSession{TTL: 1, Node: "short"})
	stand := &Acquire{Space: SpaceElection, Name: "boss", LockDelay: 9_000_000}
	b.do(Cmd{Session: 3, Seq: 1, Op: OpAcquire}, stand)
	b.do(Cmd{Session: 1, Seq: 1, Op: OpAcquire}, stand)
	r, _ := b.do(Cmd{Op: OpExpire}, &Expire{Limit: 1})
	require.Equal(t, uint64(1), r.N)
	put := func(seq, ttl uint64) {
		b.do(Cmd{Session: 2, Seq: seq, Op: OpTxn}, &Txn{Ops: []KeyOp{{Kind: KeyPut, Key: fmt.Sprint("k", seq), TTL: ttl}}})
	}
	put(1, 20_000_000)
	put(2, 1_500_000)
	due, some := b.m.NextDue()
	require.True(t, some)
	require.Equal(t, b.clock+1_500_000, due)
	b.clock += 1 << 30
	_, events := b.do(Cmd{Op: OpTick}, &CloseSession{})
	var kinds []EventKind
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	require.Equal(t, []EventKind{EventDelete, EventGranted, EventLeader, EventDelete}, kinds)
	_, some = b.m.NextDue()
	require.False(t, some)
}

func TestABrokenLogIsRefusedWhole(t *testing.T) {
	b := newRig(t, 1)
	before := b.m.Digest()
	for name, try := range map[string]func() (Outcome, error){
		"term back":    func() (Outcome, error) { return b.m.Apply(9, 0, nil) },
		"clock back":   func() (Outcome, error) { return b.m.Apply(9, 1, AppendEntry(nil, Stamp{}, nil)) },
		"not an entry": func() (Outcome, error) { return b.m.Apply(9, 1, []byte("hello")) },
		"cut off":      func() (Outcome, error) { return b.m.Apply(9, 1, []byte{1, 1, 1, 1, 1, 9, 1}) },
	} {
		_, err := try()
		require.Error(t, err, name)
		require.Equal(t, before, b.m.Digest(), name)
	}
	out, err := b.m.Apply(1, 1, []byte("hello"))
	require.NoError(t, err, "an entry that was applied before is skipped unread")
	require.Empty(t, out)
	_, err = b.m.Apply(2, 5, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(2), b.m.Applied())
}

// A new incarnation, as after a restore, starts above every token, id and revision.
func TestAnIncarnationIsOnTop(t *testing.T) {
	b := newRig(t, 1)
	require.Equal(t, Token(1), b.acquire(0, 1, "x").Token)
	b.do(Cmd{Session: 1, Seq: 2, Op: OpRelease}, &Release{SpaceLock, "x", 1, 1})
	b.m.incarnation = 7
	require.Equal(t, Token(7<<counterBits|1), b.acquire(0, 3, "x").Token)
	b.do(Cmd{Session: 1, Seq: 4, Op: OpRelease}, &Release{SpaceLock, "x", 3, 7<<counterBits | 1})
	require.Equal(t, Token(7<<counterBits|2), b.acquire(0, 5, "x").Token)
	require.Equal(t, Token(7<<counterBits|1), b.acquire(0, 6, "y").Token)
}

func TestNamesThatAreRefused(t *testing.T) {
	for _, name := range []string{"", "a\nb", "\x00", "\xff", string(make([]byte, 257))} {
		require.Equal(t, Invalid, newRig(t, 1).acquire(0, 1, name).Code, "%q", name)
	}
	require.Equal(t, OK, newRig(t, 1).acquire(0, 1, "Füße / 7\uFFFD").Code)
}

func TestExpirableIsTheEarliestDeadline(t *testing.T) {
	b := newRig(t, 0)
	_, some := b.m.Expirable()
	require.False(t, some)
	for _, ttl := range []uint64{50, 20, 40} {
		b.do(Cmd{Op: OpOpenSession}, &OpenSession{TTL: ttl * 1_000_000, Node: "n", Nonce: ttl})
	}
	at, some := b.m.Expirable()
	require.True(t, some)
	require.Equal(t, uint64(3_000_000+22_000_000), at, "opened at 3 ms, for 20 ms and a tenth")
	b.do(Cmd{Op: OpKeepAlive}, &KeepAlive{Sessions: []SessionID{2, 77}})
	at, _ = b.m.Expirable()
	require.Equal(t, b.m.Clock()+22_000_000, at)
}

func TestSizesThatAreRefused(t *testing.T) {
	b := newRig(t, 1)
	for seq, a := range []Acquire{
		{Space: 3, Name: "x"},
		{Space: SpaceLock, Name: "x", Label: string(make([]byte, maxLabel+1))},
		{Space: SpaceElection, Name: "x", Value: make([]byte, maxValue+1)},
		{Space: SpaceLock, Name: "x", Lineage: make([]HoldRef, maxLineage+1)},
	} {
		r, _ := b.do(Cmd{Session: 1, Seq: uint64(seq + 1), Op: OpAcquire}, &a)
		require.Equal(t, Invalid, r.Code)
		require.NotEmpty(t, r.Body)
	}
	r, _ := b.do(Cmd{Session: 1, Seq: 9, Op: OpAnnounce}, &Announce{Name: "x", Value: make([]byte, maxValue+1)})
	require.Equal(t, Invalid, r.Code)
	r, _ = b.do(Cmd{Session: 1, Seq: 10, Op: OpKeepAlive}, &CloseSession{})
	require.Equal(t, OK, r.Code)
}
