package sim

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/replica"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/internal/wal"
)

const (
	logDir       = "raft"
	segmentBytes = 64 << 10
)

// node is a machine with a disk, a clock and, while it is up, one process: the
// shell that drives a replica.
type node struct {
	w     *world
	at    int // place in the network
	id    uint64
	clock clock
	disk  *vfs.Mem
	boot  uint64

	founder founder
	genesis *founding.Genesis // nil until it is decided here

	frozen bool     // stopped by a signal: what comes waits
	thaw   []func() // what came meanwhile
	slow   uint64   // a write takes up to that long
	*process
}

// process is what a crash takes away.
type process struct {
	log     *wal.Log
	machine *machine.Machine
	rep     *replica.Replica
	conf    *raftpb.ConfState

	waking, ticked    bool
	acks, inbox       []*raftpb.Message
	asked             []request
	appends, applies  []*raftpb.Message
	writing, applying bool
	queued            []request
	waiting           map[uint64][]request // by number of the entry
	lead              uint64
	reads             reads
	snapshot          uint64 // index of the newest
}

func newNode(w *world, at int) *node {
	n := &node{w: w, at: at, id: uint64(at + 1), clock: w.newClock(), disk: vfs.NewMem(), slow: 2 * millisecond}
	return n
}

func (n *node) up() bool { return n.process != nil }

func (n *node) now() replica.Now {
	return replica.Now{Mono: n.clock.read(n.w.now), Wall: int64(n.w.now)}
}

// later runs act after a delay, unless the process is gone by then. While it is
// frozen act waits.
func (n *node) later(delay uint64, act func()) {
	p := n.process
	var run func()
	run = func() {
		switch {
		case n.process != p:
		case n.frozen:
			n.thaw = append(n.thaw, run)
		default:
			act()
		}
	}
	n.w.after(delay, run)
}

func (n *node) options() wal.Options {
	return wal.Options{FS: n.disk, Dir: logDir, Cluster: n.genesis.Hash(), RaftID: n.id, SegmentBytes: segmentBytes}
}

// create makes the log of a member of a cluster that was just founded.
func (n *node) create() error {
	conf := &raftpb.ConfState{AutoLeave: new(false)}
	for _, v := range n.genesis.Voters {
		conf.Voters = append(conf.Voters, v.ID)
	}
	log, err := wal.Create(n.options(), conf)
	if err != nil {
		return err
	}
	return log.Close()
}

// start opens the log and begins to run.
func (n *node) start() {
	if n.up() {
		return
	}
	n.boot++
	n.w.note("start", n.at, n.boot, 0)
	if err := n.open(); errors.Is(err, vfs.ErrPowerLost) {
		n.lose()
		n.w.after(n.w.upTo(second), n.start)
		return
	} else if err != nil {
		n.w.fail("W1: node %d cannot open what it had acknowledged: %w", n.id, err)
		return
	}
	n.later(n.w.upTo(n.w.tick), n.beat)
	n.wake()
}

func (n *node) open() error {
	log, err := wal.Open(n.options())
	if err != nil {
		return err
	}
	meta, r, err := log.OpenSnapshot()
	if err != nil {
		return err
	}
	state, err := io.ReadAll(r)
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	m := machine.New()
	if len(state) > 0 && !n.w.cfg.mutant.is(forgetSnapshot) {
		if err := m.Restore(state); err != nil {
			return err
		}
	}
	rep, err := replica.New(replica.Config{
		ID: n.id, Proposer: n.id<<32 | n.boot, Storage: log, Machine: m, Applied: meta.GetIndex(),
		ElectionTicks: 16, HeartbeatTicks: 2, Tick: n.w.tick, Depth: 2, Logger: n.w.cfg.Logger,
	})
	if err != nil {
		return err
	}
	n.process = &process{log: log, machine: m, rep: rep, conf: meta.GetConfState(), waiting: map[uint64][]request{}, snapshot: meta.GetIndex()}
	return nil
}

// kill ends the process as SIGKILL does: nothing is closed, the files stay as they are.
func (n *node) kill() {
	n.w.note("kill", n.at, 0, 0)
	n.process, n.thaw, n.frozen = nil, nil, false
}

// lose ends the process and takes the power: what was not synced is gone, or torn.
func (n *node) lose() {
	n.kill()
	n.w.note("power", n.at, 0, 0)
	n.w.stats.PowerLosses++
	if n.w.chance(2) {
		n.disk.Crash()
	} else {
		n.disk.Tear(n.w.rnd)
	}
}

// beat is the ticker.
func (n *node) beat() {
	n.ticked = true
	n.later(n.clock.real(n.w.tick), n.beat)
	if !n.waking {
		n.waking = true
		n.turn()
	}
}

// wake lets the loop turn soon.
func (n *node) wake() {
	if n.up() && !n.waking {
		n.waking = true
		n.later(10*microsecond+n.w.upTo(100*microsecond), n.turn)
	}
}

// turn is one turn of the loop. Now and then the scheduler takes the processor away
// in the middle of it.
func (n *node) turn() {
	early := n.now()
	if !n.w.calm && n.w.chance(n.w.faults.stalls) {
		n.later(n.w.upTo(300*millisecond), func() { n.work(early) })
		return
	}
	n.work(early)
}

func (n *node) work(early replica.Now) {
	n.waking = false
	n.take()
	for n.up() && n.w.err == nil {
		now := n.now()
		if n.w.cfg.mutant.is(staleNow) {
			now = early
		}
		work, ok := n.rep.Ready(now)
		if !ok {
			break
		}
		n.do(&work)
	}
	if err := n.rep.Err(); err != nil {
		n.w.fail("node %d: %w", n.id, err)
	}
}

// take feeds the replica what has arrived, commands last.
func (n *node) take() {
	if n.ticked {
		n.ticked = false
		n.rep.Tick()
	}
	acks, inbox, asked := n.acks, n.inbox, n.asked
	n.acks, n.inbox, n.asked = nil, nil, nil
	for _, m := range acks {
		if err := n.rep.Step(m); err != nil {
			n.w.fail("node %d refuses its own %v: %w", n.id, m.GetType(), err)
		}
	}
	for _, m := range inbox {
		_ = n.rep.Step(m) // raft has no use for some
	}
	for _, r := range asked {
		n.hear(r)
	}
	n.w.cfg.mutant.overrule(n)
}

func (n *node) do(work *replica.Work) {
	for _, p := range work.Packed {
		n.waiting[p.Number] = slices.Clone(n.queued[:p.Commands])
		n.queued = n.queued[p.Commands:]
	}
	if work.Soft != nil {
		n.lead = work.Soft.Lead
		n.w.note("role", n.at, uint64(work.Soft.RaftState), work.Soft.Lead)
	}
	if work.Conf != nil {
		n.conf = work.Conf
	}
	if work.Lost {
		n.abandon()
	}
	for _, m := range work.Send {
		n.send(m)
	}
	n.appends = append(n.appends, work.Append...)
	n.applies = append(n.applies, work.Apply...)
	n.write()
	n.apply()
	for _, r := range work.Reads {
		n.reads.confirm(n, r)
	}
	n.answerReads()
}

func (n *node) send(m *raftpb.Message) {
	to := n.w.nodes[m.GetTo()-1]
	n.w.note("send", n.at, m.GetTo()<<8|uint64(m.GetType()), m.GetTerm()<<32|m.GetIndex())
	n.w.net.send(n.at, to.at, func() { to.receive(m) })
}

func (n *node) receive(m *raftpb.Message) {
	if n.up() {
		n.inbox = append(n.inbox, m)
		n.wake()
	}
}

// write persists all that is queued, once the last write is done.
func (n *node) write() {
	if n.writing || len(n.appends) == 0 {
		return
	}
	n.writing = true
	msgs := n.appends
	n.appends = nil
	n.w.cfg.mutant.hasty(n, msgs)
	n.later(20*microsecond+n.w.upTo(n.slow), func() {
		resp, err := replica.Persist(n.log, msgs)
		if err != nil {
			n.broke(err)
			return
		}
		n.w.note("wrote", n.at, uint64(len(msgs)), uint64(len(resp)))
		n.writing = false
		n.deliver(resp)
		n.write()
	})
}

// broke is the end of a process whose disk lost power under it.
func (n *node) broke(err error) {
	if !errors.Is(err, vfs.ErrPowerLost) {
		n.w.fail("node %d writes its log: %w", n.id, err)
		return
	}
	n.w.faults.down(n, true)
}

func (n *node) deliver(responses []*raftpb.Message) {
	for _, m := range responses {
		if m.GetTo() != n.id {
			n.send(m)
			continue
		}
		n.acks = append(n.acks, m)
		n.wake()
	}
}

// apply carries out all that is queued, once the last of it is done.
func (n *node) apply() {
	if n.applying || len(n.applies) == 0 {
		return
	}
	n.applying = true
	msgs := n.applies
	n.applies = nil
	n.later(5*microsecond+n.w.upTo(200*microsecond), func() {
		n.applying = false
		for _, m := range msgs {
			if n.w.err == nil {
				n.carryOut(m)
			}
		}
		n.answerReads()
		n.apply()
	})
}

func (n *node) carryOut(m *raftpb.Message) {
	m = n.w.cfg.mutant.alter(n, m)
	outs, resp, err := n.rep.ApplyEntries(m)
	if err != nil {
		n.w.fail("node %d: %w", n.id, err)
		return
	}
	n.w.note("apply", n.at, n.machine.Applied(), n.machine.Hash())
	n.w.check.applies(n, m.GetEntries())
	for i := range outs {
		n.tell(&outs[i])
	}
	n.deliver(resp)
}

// save writes a snapshot, and the leader lets go of what nobody lacks.
func (n *node) save() {
	index := n.machine.Applied()
	if index <= n.snapshot {
		return
	}
	n.w.note("snapshot", n.at, index, 0)
	err := n.log.SaveSnapshot(index, n.conf, func(out io.Writer) error {
		_, err := out.Write(n.machine.Encode())
		return err
	})
	if err == nil {
		n.snapshot = index
		if to := n.needless(); to > 1 {
			err = n.log.Compact(to)
		}
	}
	if err != nil {
		n.broke(fmt.Errorf("snapshot at %d: %w", index, err))
	}
}

// needless returns the index up to which no voter needs the log.
func (n *node) needless() uint64 {
	s := n.rep.Status()
	if s.RaftState != raft.StateLeader {
		return 0
	}
	least := n.snapshot
	for _, p := range s.Progress {
		least = min(least, p.Match)
	}
	return least
}
