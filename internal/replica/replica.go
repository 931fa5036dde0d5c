package replica

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/machine"
)

// Config says which replica this is and how it behaves.
type Config struct {
	ID             uint64           // raft id: not 0, never used for another log
	Proposer       uint64           // Stamp.Proposer of the entries packed here: the raft id mixed with a boot
	Storage        raft.Storage     // the log; it may be written by Persist meanwhile
	Machine        *machine.Machine // only ApplyEntries touches it, under whatever lock the shell has
	Applied        uint64           // index of the snapshot from which Machine was restored
	ElectionTicks  int              // an election begins after ElectionTicks to 2*ElectionTicks-1 ticks of silence
	HeartbeatTicks int
	Tick           uint64      // ns between two ticks; default 20 ms. Now is compared with it, see Ready
	Depth          int         // appends in flight from which on the leader packs no more; default 2
	Logger         raft.Logger // required; its Panic must not return, see NewLogger
}

const (
	defaultTick  = 20_000_000
	defaultDepth = 2

	maxAppendMsg   = 1 << 20  // bytes of one MsgApp
	maxInflight    = 256      // MsgApps to one follower
	maxInflightB   = 32 << 20 // and their bytes
	maxUncommitted = 64 << 20 // bytes; proposals are held back beyond it
	maxApplying    = 4 << 20  // bytes handed out to be applied and not acknowledged
	maxEarlyReads  = 64       // read rounds kept until the leader serves; more are lost
)

// Replica is one member of a raft group. See the package comment for who may call what.
type Replica struct {
	raw      *raft.RawNode
	id       uint64
	proposer uint64
	machine  *machine.Machine // ApplyEntries only
	err      error

	state raft.StateType // as of the last Ready
	term  uint64

	election uint64 // ns an election timeout lasts at least
	depth    int
	flight   flight
	queue    queue
	number   uint64            // of the last entry packed
	held     bool              // raft took no proposal; the next tick tries again
	early    []*raftpb.Message // read rounds that wait until this leader serves

	office office
	timers timers
	mono   uint64 // of the last Ready
	expire []byte // the commands of the leader itself
	tick   []byte
	conf   *raftpb.ConfState // changed and not handed out yet
}

// New returns a replica that continues what is in cfg.Storage.
func New(cfg Config) (r *Replica, err error) {
	if cfg.Machine == nil {
		return nil, errors.New("replica: there is no machine")
	}
	if cfg.Logger == nil {
		return nil, errors.New("replica: there is no logger")
	}
	if cfg.Tick == 0 {
		cfg.Tick = defaultTick
	}
	if cfg.Depth == 0 {
		cfg.Depth = defaultDepth
	}
	r = &Replica{
		id: cfg.ID, proposer: cfg.Proposer, machine: cfg.Machine, depth: cfg.Depth,
		election: uint64(cfg.ElectionTicks) * cfg.Tick, state: raft.StateFollower,
	}
	r.prepare()
	defer func() {
		if p := recover(); p != nil {
			r, err = nil, r.fatal("open", p)
		}
	}()
	r.raw, err = raft.NewRawNode(cfg.raft())
	if err != nil {
		return nil, fmt.Errorf("replica %x: %w", cfg.ID, err)
	}
	r.term = r.raw.BasicStatus().GetTerm()
	return r, nil
}

// raft is the configuration of the library. PreVote and CheckQuorum keep a returning
// node from disturbing a leader and a cut off leader from going on for ever; reads
// by lease are unsafe in the library (consensus.md 5.3); followers do not forward
// proposals, because the leader stamps them.
func (c *Config) raft() *raft.Config {
	return &raft.Config{
		ID: c.ID, Storage: c.Storage, Applied: c.Applied, Logger: c.Logger,
		ElectionTick: c.ElectionTicks, HeartbeatTick: c.HeartbeatTicks,
		AsyncStorageWrites: true, PreVote: true, CheckQuorum: true, ReadOnlyOption: raft.ReadOnlySafe,
		DisableProposalForwarding: true, StepDownOnRemoval: true,
		MaxSizePerMsg: maxAppendMsg, MaxInflightMsgs: maxInflight, MaxInflightBytes: maxInflightB,
		MaxUncommittedEntriesSize: maxUncommitted, MaxCommittedSizePerReady: maxApplying,
	}
}

// Err returns what ended the replica, or nil while it lives. The shell asks after
// every turn of its loop.
func (r *Replica) Err() error { return r.err }

// Term returns the raft term as of the last Ready.
func (r *Replica) Term() uint64 { return r.term }

// Serving reports whether this replica leads and has applied the first entry of its
// term: only then are commands taken.
func (r *Replica) Serving() bool { return r.err == nil && r.office.serving }

// Status returns raft's own view, with the progress of followers at the leader. It
// allocates: it is for once a tick, not for every message.
func (r *Replica) Status() (s raft.Status) {
	defer r.contain("report the status")
	if r.err != nil {
		return raft.Status{BasicStatus: raft.BasicStatus{ID: r.id, HardState: &raftpb.HardState{}}}
	}
	return r.raw.Status()
}

// Tick lets Config.Tick of time pass. After a stall the shell ticks once, whatever
// was missed: a burst would make the election timer run faster than time does.
func (r *Replica) Tick() {
	defer r.contain("tick")
	if r.err == nil {
		r.held = false
		r.raw.Tick()
	}
}

// Campaign starts an election now instead of after the election timeout.
func (r *Replica) Campaign() {
	defer r.contain("campaign")
	if r.err == nil {
		_ = r.raw.Campaign() // refused while a voter change is committed and not applied
	}
}

// Transfer makes the leader hand its office to a voter that is up to date as soon as
// it is. Commands stay queued meanwhile; after an election timeout without success
// the office goes on. Elsewhere than at the leader it does nothing.
func (r *Replica) Transfer(to uint64) {
	defer r.contain("transfer the leadership")
	if r.err == nil && r.state == raft.StateLeader {
		r.raw.TransferLeader(to)
	}
}

// Unreachable says that an append to a peer was lost: the next ones go one at a time
// until it answers.
func (r *Replica) Unreachable(id uint64) {
	defer r.contain("mark a peer unreachable")
	if r.err == nil {
		r.raw.ReportUnreachable(id)
	}
}

// ReadIndex starts a round of confirmation: if Work.Reads brings id back with an
// index, a read of a machine that has applied that index sees everything that was
// acknowledged before this call. Rounds get lost without notice, with a message or
// a leader. The shell tries again with an id that it never used: the answer to an
// old one would be stale (etcd-io/etcd#20418).
func (r *Replica) ReadIndex(id []byte) {
	defer r.contain("start a read round")
	switch {
	case r.err != nil:
	case r.fresh():
		r.hold(&raftpb.Message{Type: raftpb.MsgReadIndex.Enum(), From: new(r.id), To: new(r.id), Entries: []*raftpb.Entry{{Data: id}}})
	default:
		r.raw.ReadIndex(id)
	}
}

// hold keeps a read round until this leader serves, or drops it if there are many.
func (r *Replica) hold(m *raftpb.Message) {
	if len(r.early) < maxEarlyReads {
		r.early = append(r.early, m)
	}
}

// fresh reports whether this replica leads and has not applied the first entry of
// its term. It does not know then how far the log is committed, and a single voter
// would still answer a read at once, from before the writes that it acknowledged
// until it was restarted.
func (r *Replica) fresh() bool {
	return !r.office.serving && r.raw.BasicStatus().RaftState == raft.StateLeader
}

// Step takes a message of a peer, or a response of the own storage that came from
// [Persist] or [Replica.ApplyEntries]. The shell has made sure that a peer's message
// is from whom it says it is, and is none of the two storage responses. Refused
// messages (ErrRefused) and those that raft has no use for are errors, but harm
// nothing; a *FatalError is the end.
func (r *Replica) Step(m *raftpb.Message) (err error) {
	if r.err != nil {
		return r.err
	}
	defer func() {
		if r.err != nil {
			err = r.err
		}
	}()
	defer r.contain("step a message")
	if err := r.check(m); err != nil {
		return err
	}
	switch m.GetType() {
	case raftpb.MsgStorageAppendResp:
		r.flight.land()
	case raftpb.MsgStorageApplyResp:
		return r.stepApplied(m)
	case raftpb.MsgReadIndex:
		if r.fresh() {
			r.hold(m) // raft would keep any number of them
			return nil
		}
	}
	return r.raw.Step(m)
}
