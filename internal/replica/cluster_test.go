package replica

import (
	"fmt"
	"io"
	"log"
	"testing"
	"testing/cryptotest"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/machine"
)

const ms = 1_000_000

// cluster runs a few replicas in turns, over a perfect network and disks in memory.
// What a test makes worse it makes by hand.
type cluster struct {
	t     testing.TB
	nodes map[uint64]*node
	ids   []uint64
	now   uint64
	cut   map[uint64]bool
}

type node struct {
	*Replica
	cluster *cluster
	disk    *disk
	m       *machine.Machine
	stuck   bool // the disk does not answer
	appends []*raftpb.Message
	packed  []Packed
	outs    []machine.Outcome
	reads   []raft.ReadState
	confs   []*raftpb.ConfState
	lost    int
	mono    uint64 // ahead of cluster.now
}

// disk is a Log that counts.
type disk struct {
	*raft.MemoryStorage
	writes, syncs int
	broken        error
}

func (d *disk) Append(hs *raftpb.HardState, ents []*raftpb.Entry, sync bool) error {
	d.writes++
	if sync {
		d.syncs++
	}
	if hs != nil {
		if err := d.SetHardState(hs); err != nil {
			return err
		}
	}
	if d.broken != nil {
		return d.broken
	}
	return d.MemoryStorage.Append(ents)
}

func newDisk(t testing.TB, voters ...uint64) *disk {
	d := &disk{MemoryStorage: raft.NewMemoryStorage()}
	conf := &raftpb.ConfState{Voters: voters, AutoLeave: new(false)}
	require.NoError(t, d.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1)), Term: new(uint64(1)), ConfState: conf}}))
	require.NoError(t, d.SetHardState(&raftpb.HardState{Term: new(uint64(1)), Vote: new(uint64(0)), Commit: new(uint64(1))}))
	return d
}

func newCluster(t testing.TB, n int) *cluster {
	if t, ok := t.(*testing.T); ok {
		cryptotest.SetGlobalRandom(t, 1)
	}
	c := &cluster{t: t, nodes: map[uint64]*node{}, cut: map[uint64]bool{}}
	for i := range n {
		c.ids = append(c.ids, uint64(i+1))
	}
	for _, id := range c.ids {
		c.start(id, newDisk(t, c.ids...), machine.New())
	}
	return c
}

func (c *cluster) start(id uint64, d *disk, m *machine.Machine) *node {
	rep, err := New(Config{ID: id, Proposer: id << 8, Storage: d, Machine: m, Applied: 1, ElectionTicks: 16, HeartbeatTicks: 2, Logger: quiet()})
	require.NoError(c.t, err)
	n := &node{Replica: rep, cluster: c, disk: d, m: m}
	c.nodes[id] = n
	return n
}

// quiet logs nothing, and panics where raft counts on it.
func quiet() raft.Logger {
	return NewLogger(nil, &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)})
}

func (n *node) now() Now { return Now{Mono: n.cluster.now + n.mono, Wall: int64(n.cluster.now)} }

// turn lets one node do all it can and returns what it sends.
func (n *node) turn() (send []*raftpb.Message) {
	t := n.cluster.t
	for {
		w, ok := n.Ready(n.now())
		require.NoError(t, n.Err())
		if !ok {
			return send
		}
		send = append(send, w.Send...)
		n.packed = append(n.packed, w.Packed...)
		n.reads = append(n.reads, w.Reads...)
		if w.Conf != nil {
			n.confs = append(n.confs, w.Conf)
		}
		if w.Lost {
			n.lost++
		}
		n.appends = append(n.appends, w.Append...)
		if !n.stuck {
			send = append(send, n.write()...)
		}
		for _, m := range w.Apply {
			outs, resp, err := n.ApplyEntries(m)
			require.NoError(t, err)
			if _, timed := t.(*testing.B); !timed {
				require.NoError(t, n.m.Check())
				n.outs = append(n.outs, outs...)
			}
			send = append(send, n.own(resp)...)
		}
	}
}

func (n *node) write() []*raftpb.Message {
	resp, err := Persist(n.disk, n.appends)
	require.NoError(n.cluster.t, err)
	n.appends = nil
	return n.own(resp)
}

// own steps what is for the node itself and returns the rest.
func (n *node) own(msgs []*raftpb.Message) (rest []*raftpb.Message) {
	for _, m := range msgs {
		if m.GetTo() != n.id {
			rest = append(rest, m)
			continue
		}
		require.NoError(n.cluster.t, n.Step(m))
	}
	return rest
}

// settle runs until nothing is said any more.
func (c *cluster) settle() {
	for quiet := false; !quiet; {
		quiet = true
		for _, id := range c.ids {
			for _, m := range c.nodes[id].turn() {
				quiet = false
				if !c.cut[m.GetFrom()] && !c.cut[m.GetTo()] {
					_ = c.nodes[m.GetTo()].Step(m)
				}
			}
		}
	}
}

// pass lets d ns go by in ticks of 20 ms.
func (c *cluster) pass(d uint64) {
	for end := c.now + d; c.now < end; {
		c.now += 20 * ms
		for _, id := range c.ids {
			c.nodes[id].Tick()
		}
		c.settle()
	}
}

// elect makes a node the leader.
func (c *cluster) elect(id uint64) *node {
	c.nodes[id].Campaign()
	c.settle()
	require.True(c.t, c.nodes[id].Serving())
	return c.nodes[id]
}

func (n *node) enqueue(op machine.Op, c machine.Cmd, body machine.Message) {
	c.Op, c.Body = op, machine.Encode(body)
	require.True(n.cluster.t, n.Enqueue(machine.Encode(&c)))
}

// open opens a session and returns its id.
func (n *node) open(name string, ttl uint64) machine.SessionID {
	n.enqueue(machine.OpOpenSession, machine.Cmd{}, &machine.OpenSession{TTL: ttl, Node: name, Boot: 1, Nonce: 1})
	n.cluster.settle()
	out := n.outs[len(n.outs)-1]
	require.Equal(n.cluster.t, machine.OK, out.Answers[0].Result.Code, fmt.Sprint(out))
	return machine.SessionID(out.Answers[0].Result.N)
}
