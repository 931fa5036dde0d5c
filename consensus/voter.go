package consensus

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/replica"
	"github.com/clatter-go/clatter/internal/wal"
)

const (
	appendDepth = 2     // appends in flight before the leader waits to pack more (overview, decision 2)
	maxInbox    = 4096  // messages of peers; beyond it they are lost, and raft sends again
	maxProposed = 65536 // commands of all callers; beyond it callers wait
)

// voter is the shell of one replica: the goroutines that give it time, disk,
// network and callers.
type voter struct {
	engine   *Engine
	epoch    time.Time // zero of the leader's clock
	id       uint64
	proposer uint64 // our mark on the entries that we packed
	hash     [hashBytes]byte
	pace     Pace
	peers    map[uint64]*peer
	log      *wal.Log
	conf     atomic.Pointer[raftpb.ConfState]

	ctx    context.Context // ends at stop
	cancel context.CancelFunc
	wg     sync.WaitGroup

	loop    loop // the loop goroutine's own
	bell    bell // wakes the loop
	inbox   mailbox[*raftpb.Message]
	acks    mailbox[*raftpb.Message] // of our own disk and machine: never full
	props   mailbox[proposal]
	orders  mailbox[func()]
	appends mailbox[*raftpb.Message]
	applies mailbox[*raftpb.Message]

	reads       mailbox[*reading]
	confirmed   chan confirmed
	applied     atomic.Uint64
	appliedBell bell

	hub      hub
	owners   owners
	quiet    atomic.Bool   // nothing is sent any more, or until the disk answers (protocol 8)
	broken   chan struct{} // closed once nothing is acknowledged any more
	breaking sync.Once
	stall    stall
	seat     atomic.Pointer[office] // not nil while this voter serves as the leader
	view     atomic.Pointer[view]

	mu      sync.RWMutex // guards machine: the applier writes, readers read
	machine *machine.Machine

	waiting waiting
	snap    snapshotter
}

// office is one term of serving as the leader: from the moment when the first
// entry of the term is applied here to the loss of leadership.
type office struct {
	term uint64
	over chan struct{} // closed once every waiter has been told
}

// proposal is a command and whom to answer.
type proposal struct {
	sink sink
	id   uint64
	cmd  []byte
}

// view is what the loop last knew; a snapshot for Status.
type view struct {
	leader  uint64
	term    uint64
	elected bool
	lag     map[uint64]uint64 // entries that a follower lacks; at the leader
	match   uint64            // all voters have the log up to here; at the leader
}

func (v *voter) office() *office { return v.seat.Load() }

// elected reports whether this voter is leader, whether it serves yet or not.
func (v *voter) elected() bool { return v.view.Load().elected }

// propose queues commands for the leader's next entry. It reports false, and takes
// none, if too many are queued. Each command that was taken is answered, unless
// the replica stops.
func (v *voter) propose(batch ...proposal) bool { return v.props.put(batch...) }

// order has fn run by the loop.
func (v *voter) order(fn func()) { v.orders.put(fn) }

func openVoter(e *Engine, g *founding.Genesis, id identity) (*voter, error) {
	v := &voter{engine: e, epoch: time.Now(), id: id.RaftID, proposer: id.RaftID ^ e.cfg.Boot*0x9e3779b97f4a7c15, hash: g.Hash(), pace: e.cfg.Pace, peers: map[uint64]*peer{}}
	conf := &raftpb.ConfState{}
	for _, s := range g.Voters {
		conf.Voters = append(conf.Voters, s.ID)
		if s.ID != v.id {
			v.peers[s.ID] = v.newPeer(s.ID, s.Name)
		}
	}
	v.conf.Store(conf)
	if err := v.openLog(id); err != nil {
		return nil, err
	}
	rep, err := replica.New(replica.Config{
		ID: v.id, Proposer: v.proposer, Storage: v.log, Machine: v.machine, Applied: v.applied.Load(),
		ElectionTicks: v.pace.Election, HeartbeatTicks: v.pace.Heartbeat, Depth: appendDepth, Logger: newRaftLogger(e.cfg.Logger), Tick: uint64(v.pace.Tick),
	})
	if err != nil {
		_ = v.log.Close()
		return nil, err
	}
	v.loop.rep, v.loop.sent = rep, map[uint64]uint64{}
	v.view.Store(&view{})
	v.bell = newBell()
	v.inbox = mailbox[*raftpb.Message]{bell: v.bell, max: maxInbox}
	v.acks.bell = v.bell
	v.props = mailbox[proposal]{bell: v.bell, max: maxProposed}
	v.orders.bell = v.bell
	v.appends.bell, v.applies.bell = newBell(), newBell()
	v.reads = mailbox[*reading]{bell: newBell(), max: maxProposed}
	v.confirmed = make(chan confirmed, 64)
	v.appliedBell = newBell()
	v.broken = make(chan struct{})
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v, nil
}

func (v *voter) start() {
	v.wg.Go(func() { v.guarded(v.run) })
	v.wg.Go(func() { v.guarded(v.persister) })
	v.wg.Go(func() { v.guarded(v.applier) })
	v.wg.Go(func() { v.reader(v.ctx) })
	v.wg.Go(func() { v.marker(v.ctx) })
	for _, p := range v.peers {
		v.wg.Go(func() { p.ctl.run(v.ctx) })
		v.wg.Go(func() { p.log.run(v.ctx) })
	}
}

// newRaftLogger brings the library's log to ours. What the library calls fatal must
// not return; the replica contains its panic.
func newRaftLogger(l *slog.Logger) raft.Logger {
	return replica.NewLogger(l, &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)})
}

// guarded runs a part of the replica. A panic is a broken invariant: it ends the
// replica, never the process.
func (v *voter) guarded(part func(context.Context)) {
	defer func() {
		if r := recover(); r != nil {
			v.poison(fmt.Errorf("broken invariant: %v", r))
			v.quiet.Store(true)
		}
	}()
	part(v.ctx)
}

func (v *voter) stop() error {
	v.cancel()
	v.wg.Wait()
	v.hub.end()
	return v.log.Close()
}

// campaign starts an election at once, without waiting for the timeout.
func (v *voter) campaign() {
	v.order(func() { v.loop.rep.Campaign() })
}

// resign starts to hand the leadership to the follower that lacks least.
func (v *voter) resign() { v.order(v.transfer) }
