package replica

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

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

func add(n *node, s machine.SessionID, seq uint64) {
	n.enqueue(machine.OpAdd, machine.Cmd{Session: s, Seq: seq}, &machine.Add{Name: "n", Delta: 1})
}

func TestNoMoreIsPackedThanDepthAppendsUnderWay(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	leader.stuck = true
	before := len(leader.packed)
	for i := range 6 {
		add(leader, s, uint64(i+1))
		c.settle()
	}
	require.Len(t, leader.packed, before+2)
	leader.stuck = false
	leader.own(leader.write())
	c.settle()
	require.Equal(t, Packed{Number: leader.number, Commands: 4}, leader.packed[len(leader.packed)-1])
	require.Equal(t, 6, int(leader.m.Query(&machine.Query{Kind: machine.QueryCounter, Name: "n"}).N))
}

func TestABatchBeyondTheBoundsOfAnEntryIsSeveralEntries(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	before := len(leader.packed)
	for i := range 1100 {
		add(leader, s, uint64(i+1))
	}
	c.settle()
	var sizes []int
	for _, p := range leader.packed[before:] {
		sizes = append(sizes, p.Commands)
	}
	require.Equal(t, []int{512, 512, 76}, sizes)
	n, _ := fit([][]byte{make([]byte, 1<<20), {1}})
	require.Equal(t, 1, n)
	n, _ = fit([][]byte{make([]byte, 200<<10), make([]byte, 100<<10)})
	require.Equal(t, 1, n)
}

func TestTheQueueIsBoundedAndEmptiedOnDemand(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	for range maxQueued {
		require.True(t, leader.Enqueue([]byte{1}))
	}
	require.False(t, leader.Enqueue([]byte{1}))
	require.Equal(t, maxQueued, leader.DropQueued())
	require.True(t, leader.Enqueue(make([]byte, maxQueuedBytes+1)), "one that is larger than the bound passes alone")
	require.False(t, leader.Enqueue([]byte{1}))
	require.False(t, c.nodes[2].Enqueue([]byte{1}), "only the leader takes commands")
}

func TestALeaderThatIsCutOffLosesItsOfficeAndWhatItHadQueued(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	leader.stuck = true
	for i := range 4 {
		add(leader, s, uint64(i+1))
		c.settle()
	}
	c.cut[1] = true
	c.pass(2 * second)
	require.Equal(t, 1, leader.lost)
	require.False(t, leader.Serving())
	require.Zero(t, leader.DropQueued())
	require.False(t, leader.Enqueue([]byte{1}))
	serving := 0
	for _, id := range c.ids {
		if c.nodes[id].Serving() {
			serving++
		}
	}
	require.Equal(t, 1, serving)
}

func TestCommandsWaitForATransferAndAreKeptIfItFails(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	c.cut[3] = true
	leader.Transfer(3)
	add(leader, s, 1)
	c.settle()
	require.Equal(t, 1, leader.DropQueued())
	add(leader, s, 1)
	c.pass(second)
	require.EqualValues(t, 1, leader.m.Query(&machine.Query{Kind: machine.QueryCounter, Name: "n"}).N)
}

func TestAReadRoundIsConfirmedOnAnyVoter(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	leader.open("a", 1<<40)
	for _, id := range c.ids {
		n := c.nodes[id]
		n.ReadIndex([]byte{byte(id)})
		c.settle()
		require.Len(t, n.reads, 1)
		require.Equal(t, []byte{byte(id)}, n.reads[0].RequestCtx)
		require.Equal(t, leader.m.Applied(), n.reads[0].Index)
	}
	c.cut[1] = true
	leader.ReadIndex([]byte("late"))
	c.settle()
	require.Len(t, leader.reads, 1, "a cut off leader confirms nothing")
}

func TestVotersChangeAlongThePathOfEntries(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	change := &raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(uint64(3))}}}
	require.NoError(t, leader.raw.ProposeConfChange(change))
	c.settle()
	require.Len(t, leader.confs, 1)
	require.Equal(t, []uint64{1, 2}, leader.confs[0].GetVoters())
	s := leader.open("a", 1<<40)
	c.cut[3] = true
	add(leader, s, 1)
	c.settle()
	require.EqualValues(t, 1, leader.m.Query(&machine.Query{Kind: machine.QueryCounter, Name: "n"}).N)
	require.Equal(t, leader.m.Applied(), leader.Status().Applied)
}

func TestARestartSkipsWhatTheMachineHasApplied(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.elect(1)
	s := leader.open("a", 1<<40)
	add(leader, s, 1)
	c.settle()
	hash := leader.m.Hash()
	again := c.start(1, leader.disk, leader.m)
	c.settle()
	require.Equal(t, hash, again.m.Hash())
	fresh := c.start(1, leader.disk, machine.New())
	c.settle()
	require.Equal(t, hash, fresh.m.Hash())
}

func TestMessagesThatNoCorrectPeerSendsAreRefused(t *testing.T) {
	c := newCluster(t, 3)
	n := c.elect(1)
	id, to := new(uint64(2)), new(uint64(1))
	for name, m := range map[string]*raftpb.Message{
		"a proposal":      {Type: raftpb.MsgProp.Enum(), From: id, To: to, Entries: entriesOf(1, 2)},
		"a snapshot":      {Type: raftpb.MsgSnap.Enum(), From: id, To: to},
		"a local one":     {Type: raftpb.MsgHup.Enum(), From: id, To: to},
		"an ack":          {Type: raftpb.MsgStorageAppendResp.Enum(), From: id, To: to},
		"a write":         {Type: raftpb.MsgStorageAppend.Enum(), From: id, To: to},
		"forget":          {Type: raftpb.MsgForgetLeader.Enum(), From: id, To: to},
		"for another":     {Type: raftpb.MsgHeartbeat.Enum(), From: id, To: new(uint64(3))},
		"from nobody":     {Type: raftpb.MsgHeartbeat.Enum(), To: to},
		"from myself":     {Type: raftpb.MsgHeartbeat.Enum(), From: to, To: to},
		"from the disk":   {Type: raftpb.MsgApp.Enum(), From: new(raft.LocalAppendThread), To: to},
		"no read id":      {Type: raftpb.MsgReadIndex.Enum(), From: id, To: to},
		"nil read id":     {Type: raftpb.MsgReadIndex.Enum(), From: id, To: to, Entries: []*raftpb.Entry{nil}},
		"a hole":          {Type: raftpb.MsgApp.Enum(), From: id, To: to, Term: new(uint64(9)), Index: new(uint64(1)), Entries: entriesOf(1, 3)},
		"a nil entry":     {Type: raftpb.MsgApp.Enum(), From: id, To: to, Term: new(uint64(9)), Index: new(uint64(1)), Entries: []*raftpb.Entry{nil}},
		"a future term":   {Type: raftpb.MsgApp.Enum(), From: id, To: to, Term: new(uint64(9)), Index: new(uint64(1)), Entries: entriesOf(10, 2)},
		"applied nothing": {Type: raftpb.MsgStorageApplyResp.Enum(), From: new(raft.LocalApplyThread), To: to},
		"nothing":         nil,
	} {
		require.ErrorIs(t, n.Step(m), ErrRefused, name)
		require.NoError(t, n.Err(), name)
	}
}

func TestAPanicOfRaftEndsTheReplicaAndNothingElse(t *testing.T) {
	c := newCluster(t, 3)
	c.elect(1)
	n := c.nodes[2]
	err := n.Step(&raftpb.Message{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(n.Term()), Commit: new(uint64(99))})
	var fatal *FatalError
	require.ErrorAs(t, err, &fatal)
	require.ErrorContains(t, err, "tocommit(99) is out of range")
	require.Equal(t, err, n.Err())
	_, ok := n.Ready(n.now())
	require.False(t, ok)
	require.False(t, n.Enqueue([]byte{1}))
	require.Equal(t, err, n.Step(&raftpb.Message{}))
	n.Tick()
	n.Campaign()
	n.Transfer(1)
	n.Unreachable(1)
	n.ReadIndex([]byte("r"))
	require.False(t, n.Serving())
	require.EqualValues(t, 2, n.Status().ID)
}

func TestAnEntryThatBreaksTheLogEndsTheReplica(t *testing.T) {
	c := newCluster(t, 3)
	n := c.elect(1)
	m := &raftpb.Message{Entries: []*raftpb.Entry{{Index: new(uint64(9)), Term: new(uint64(9)), Data: []byte("garbage")}}}
	outs, resp, err := n.ApplyEntries(m)
	var fatal *FatalError
	require.ErrorAs(t, err, &fatal)
	require.Empty(t, outs)
	require.Empty(t, resp)
}

func TestAConfigWithoutItsPartsIsAnError(t *testing.T) {
	d := newDisk(t, 1)
	good := Config{ID: 1, Storage: d, Machine: machine.New(), Applied: 1, ElectionTicks: 16, HeartbeatTicks: 2, Logger: quiet()}
	for name, spoil := range map[string]func(*Config){
		"machine": func(c *Config) { c.Machine = nil }, "logger": func(c *Config) { c.Logger = nil },
		"id": func(c *Config) { c.ID = 0 }, "ticks": func(c *Config) { c.ElectionTicks = 1 },
		"applied": func(c *Config) { c.Applied = 7 },
	} {
		bad := good
		spoil(&bad)
		r, err := New(bad)
		require.Error(t, err, name)
		require.Nil(t, r, name)
	}
	_, err := New(good)
	require.NoError(t, err)
}

func TestASingleVoterReadsNothingOlderThanWhatItAcknowledgedBeforeItsRestart(t *testing.T) {
	c := newCluster(t, 1)
	n := c.elect(1)
	s := n.open("a", 1<<40)
	add(n, s, 1)
	c.settle()
	acknowledged := n.m.Applied()
	hs, _, err := n.disk.InitialState()
	require.NoError(t, err)
	require.NoError(t, n.disk.SetHardState(&raftpb.HardState{Term: hs.Term, Vote: hs.Vote, Commit: new(uint64(1))}), "a commit index alone is not synced")

	again := c.start(1, n.disk, machine.New())
	again.Campaign()
	led := false
	for !led { // to the moment when it leads and has not said so
		w, ok := again.Ready(again.now())
		require.True(t, ok)
		resp, err := Persist(again.disk, w.Append)
		require.NoError(t, err)
		again.own(resp)
		led = again.Status().RaftState == raft.StateLeader
	}
	again.ReadIndex([]byte("r"))
	c.settle()
	require.Len(t, again.reads, 1)
	require.GreaterOrEqual(t, again.reads[0].Index, acknowledged)
}

func TestReadsAtALeaderThatDoesNotServeYetAreHeldUpToABound(t *testing.T) {
	c := newCluster(t, 3)
	c.cut[2], c.cut[3] = true, true
	n := c.nodes[1]
	require.NoError(t, n.raw.Campaign())
	for _, id := range []uint64{2, 3} { // it wins, and nothing of its term is committed
		for _, typ := range []raftpb.MessageType{raftpb.MsgPreVoteResp, raftpb.MsgVoteResp} {
			n.turn()
			_ = n.Step(&raftpb.Message{Type: typ.Enum(), From: new(id), To: new(uint64(1)), Term: new(uint64(2))})
		}
	}
	require.Equal(t, raft.StateLeader, n.Status().RaftState)
	for range 2 * maxEarlyReads {
		n.ReadIndex([]byte("r"))
		require.NoError(t, n.Step(&raftpb.Message{Type: raftpb.MsgReadIndex.Enum(), From: new(uint64(2)), To: new(uint64(1)), Entries: []*raftpb.Entry{{Data: []byte("p")}}}))
	}
	require.Len(t, n.early, maxEarlyReads)
	c.cut = map[uint64]bool{}
	c.pass(200 * ms)
	require.True(t, n.Serving())
	require.Len(t, n.reads, maxEarlyReads/2)
	require.Len(t, c.nodes[2].reads, maxEarlyReads/2)
	require.Empty(t, n.early)
}

func FuzzStep(f *testing.F) {
	for _, m := range []*raftpb.Message{
		{Type: raftpb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(2)), Index: new(uint64(1)), LogTerm: new(uint64(1)), Entries: entriesOf(2, 2)},
		{Type: raftpb.MsgHeartbeat.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(2))},
		{Type: raftpb.MsgVote.Enum(), From: new(uint64(3)), To: new(uint64(1)), Term: new(uint64(9)), Index: new(uint64(9)), LogTerm: new(uint64(9))},
		{Type: raftpb.MsgReadIndex.Enum(), From: new(uint64(3)), To: new(uint64(1)), Entries: []*raftpb.Entry{{Data: []byte("r")}}},
	} {
		b, err := proto.Marshal(m)
		require.NoError(f, err)
		f.Add(b, false)
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, lead bool) {
		m := new(raftpb.Message)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		c := newCluster(t, 3)
		if lead {
			c.elect(1)
		}
		n := c.nodes[1]
		err := n.Step(m)
		var fatal *FatalError
		require.Equal(t, n.Err() != nil, errors.As(err, &fatal), "only a FatalError ends it, and each does")
		_, _ = n.Ready(n.now())
		n.Tick()
	})
}
