package replica

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

func TestCommandsOfOneTurnAreOneEntryAndAnsweredByPlace(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	for i := range 5 {
		leader.enqueue(machine.OpAdd, machine.Cmd{Session: s, Seq: uint64(i + 1)}, &machine.Add{Name: "n", Delta: 1})
	}
	before := len(leader.outs)
	c.settle()
	require.Len(t, leader.outs, before+1)
	require.Equal(t, Packed{Number: 2, Commands: 5}, leader.packed[1])
	out := leader.outs[before]
	require.Equal(t, leader.proposer, out.Stamp.Proposer)
	require.EqualValues(t, 2, out.Stamp.Number)
	for i, a := range out.Answers {
		require.EqualValues(t, i+1, a.Result.N)
	}
	c.pass(200 * ms) // heartbeats bring the commit index
	for _, id := range c.ids {
		require.Equal(t, leader.m.Hash(), c.nodes[id].m.Hash())
		require.Equal(t, leader.m.Digest(), c.nodes[id].m.Digest())
	}
}
