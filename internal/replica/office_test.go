package replica

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

func (n *node) stamps() (all []uint64) {
	for _, o := range n.outs {
		all = append(all, o.Stamp.Clock)
	}
	return all
}

func (n *node) isOpen(s machine.SessionID) bool {
	return n.m.Query(&machine.Query{Kind: machine.QuerySession, Session: s}).Code == machine.OK
}

func (n *node) renew(s machine.SessionID) {
	n.enqueue(machine.OpKeepAlive, machine.Cmd{}, &machine.KeepAlive{Sessions: []machine.SessionID{s}})
}

func TestADeadSessionEndsAtItsDeadlineAndNotBefore(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 3*second)
	c.pass(3200 * ms)
	require.True(t, leader.isOpen(s))
	c.pass(200 * ms)
	require.False(t, leader.isOpen(s))
}

func TestAnIdleLeaderWritesNothingButOneStampASecondWhileATimerRuns(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	c.pass(5 * second)
	require.Empty(t, leader.outs)
	leader.open("a", 100*second)
	before := len(leader.outs)
	c.pass(10 * second)
	require.InDelta(t, 10, len(leader.outs)-before, 1)
}

func TestARenewalThatIsQueuedStandsBeforeTheExpire(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 3*second)
	c.pass(3280 * ms)
	c.now += 100 * ms
	leader.renew(s)
	c.settle()
	last := leader.outs[len(leader.outs)-1]
	require.Len(t, last.Answers, 2, "the renewal and the leader's own Expire")
	require.Zero(t, last.Answers[1].Result.N)
	require.True(t, leader.isOpen(s))
}

func TestTheClockStandsWhileNobodyLeadsAndOnANodeThatLedBefore(t *testing.T) {
	c := newCluster(t, 3)
	first := c.elect(1)
	first.open("a", 1000*second)
	c.pass(2 * second)
	second := c.nodes[2]
	second.mono = 500_000 * ms // another clock
	first.Transfer(2)
	c.settle()
	require.True(t, second.Serving())
	require.Equal(t, 1, first.lost)
	was := first.m.Clock()
	c.pass(5000 * ms)
	require.InDelta(t, was+5000*ms, second.m.Clock(), 1100*ms)
	second.Transfer(1)
	c.settle()
	was = second.m.Clock()
	c.pass(2000 * ms)
	require.InDelta(t, was+2000*ms, first.m.Clock(), 1100*ms, "the base of the former office is not used again")
	stamps := first.stamps()
	require.IsNonDecreasing(t, stamps)
}

func TestASessionThatIsOverdueAfterALeaderChangeIsGracedOnce(t *testing.T) {
	c := newCluster(t, 3)
	first := c.elect(1)
	s := first.open("a", 3*second)
	c.pass(3000 * ms)
	first.Transfer(2)
	c.settle()
	heir := c.nodes[2]
	require.True(t, heir.Serving())
	c.pass(3 * second)
	require.True(t, heir.isOpen(s), "the owner could not renew for a while")
	c.pass(3 * second)
	require.False(t, heir.isOpen(s))
}

func TestAStallOfTheLoopDoesNotCountAgainstTheSessions(t *testing.T) {
	c := newCluster(t, 1)
	leader := c.elect(1)
	s := leader.open("a", 3*second)
	c.pass(2 * second)
	c.now += 60 * second // stopped
	leader.Tick()
	c.settle()
	require.True(t, leader.isOpen(s))
	leader.renew(s)
	c.settle()
	c.pass(3200 * ms)
	require.True(t, leader.isOpen(s))
	c.pass(1 * second)
	require.False(t, leader.isOpen(s))
}

func TestAClockThatGoesBackIsAStall(t *testing.T) {
	c := newCluster(t, 1)
	leader := c.elect(1)
	leader.mono = 100 * second
	leader.open("a", 3*second)
	c.pass(second)
	was := leader.m.Clock()
	leader.mono = 0
	c.pass(second)
	require.InDelta(t, was+second, leader.m.Clock(), second)
	require.IsNonDecreasing(t, leader.stamps())
}

func TestANodeThatLeadsAgainDoesNotCountTheTimeWithoutALeader(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 3*second)
	c.pass(second)
	was := leader.m.Clock()
	c.cut = map[uint64]bool{1: true, 2: true, 3: true}
	c.pass(20 * second)
	require.Equal(t, 1, leader.lost)
	c.cut = map[uint64]bool{}
	leader = c.elect(1)
	leader.renew(s)
	c.settle()
	require.InDelta(t, was+1*second, leader.m.Clock(), second)
	require.True(t, leader.isOpen(s))
}
