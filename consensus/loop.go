package consensus

import (
	"context"
	"slices"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/replica"
)

// loop is what only the loop goroutine touches.
type loop struct {
	rep      *replica.Replica
	queued   []proposal // taken by the replica and not packed yet, in order
	lead     uint64     // raft id of the leader, 0 for none
	role     raft.StateType
	sent     map[uint64]uint64 // index of the last entry that was sent to each peer
	ticks    uint64
	active   map[uint64]uint64 // at the leader: tick at which each follower was last known active
	handover int               // ticks since leadership was given away because of the disk; 0 if it was not
}

// run is the loop: the only goroutine that touches the replica. It never waits for
// anything but its bell and its clock.
func (v *voter) run(ctx context.Context) {
	// A Ticker drops ticks that nobody took: after a stall there is one, not a burst
	// that would make a follower's election timer run faster than time.
	ticker := time.NewTicker(v.pace.Tick)
	defer ticker.Stop()
	defer v.leaveOffice()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			v.tick()
		case <-v.bell:
		}
		v.take()
		v.work()
		if err := v.loop.rep.Err(); err != nil {
			v.poison(err)
			return
		}
	}
}

// take hands everything that has arrived to the replica: acknowledgements of our
// own disk first, commands last, so that their entry's stamp is read after them.
func (v *voter) take() {
	rep := v.loop.rep
	for _, m := range v.acks.take() {
		v.step(m)
	}
	for _, m := range v.inbox.take() {
		if !v.quiet.Load() {
			v.step(m)
		}
	}
	for _, fn := range v.orders.take() {
		fn()
	}
	var refused []proposal
	for _, p := range v.props.take() {
		if !v.quiet.Load() && rep.Enqueue(p.cmd) {
			v.loop.queued = append(v.loop.queued, p)
			continue
		}
		refused = append(refused, p)
	}
	tell(refused, notTaken)
}

func (v *voter) step(m *raftpb.Message) {
	if err := v.loop.rep.Step(m); err != nil {
		v.engine.cfg.Logger.Debug("consensus: a raft message is dropped", "type", m.GetType(), "from", m.GetFrom(), "err", err)
	}
}

// work does what the replica asks for.
func (v *voter) work() {
	for {
		w, ok := v.loop.rep.Ready(replica.Now{Mono: v.monotonic(), Wall: time.Now().UnixNano()})
		if !ok {
			break
		}
		v.pack(w.Packed)
		if w.Soft != nil {
			v.loop.lead, v.loop.role = w.Soft.Lead, w.Soft.RaftState
		}
		if w.Conf != nil {
			v.conf.Store(w.Conf)
		}
		if w.Lost {
			v.leaveOffice()
		}
		v.send(v.spare(w.Send)...)
		if len(w.Append) > 0 {
			v.stall.begin(len(w.Append))
			v.appends.put(w.Append...)
		}
		if len(w.Apply) > 0 {
			v.applies.put(w.Apply...)
		}
		for _, r := range w.Reads {
			if round, own := roundOf(r.RequestCtx, v.id); own {
				v.confirm(confirmed{round, r.Index})
			}
		}
	}
	v.settle()
}

// pack notes whose commands are in which entry, before that entry can be applied.
func (v *voter) pack(packed []replica.Packed) {
	for _, p := range packed {
		v.waiting.add(p.Number, v.loop.queued[:p.Commands])
		v.loop.queued = v.loop.queued[p.Commands:]
	}
	if len(v.loop.queued) == 0 {
		v.loop.queued = nil // the array goes to the waiters
	}
}

// spare leaves out appends without entries to followers that have been sent all of
// the log, while more commands are queued: the entry of those brings the commit
// index, too, as soon as the disk is free, or else the next heartbeat does.
func (v *voter) spare(msgs []*raftpb.Message) []*raftpb.Message {
	l := &v.loop
	return slices.DeleteFunc(msgs, func(m *raftpb.Message) bool {
		if m.GetType() != raftpb.MsgApp {
			return false
		}
		if n := len(m.GetEntries()); n > 0 {
			l.sent[m.GetTo()] = m.GetIndex() + uint64(n)
			return false
		}
		return len(l.queued) > 0 && m.GetIndex() == l.sent[m.GetTo()]
	})
}

// confirm hands a finished read round to the reader, which may have given it up.
func (v *voter) confirm(c confirmed) {
	select {
	case v.confirmed <- c:
	default:
	}
}

// monotonic is the leader's clock for stamps. Only differences matter.
func (v *voter) monotonic() uint64 { return uint64(time.Since(v.epoch)) }

// tell answers commands that have no result.
func tell(batch []proposal, what verdict) {
	var last sink
	for _, p := range batch {
		p.sink.answer(p.id, what, nil)
		if last != nil && last != p.sink {
			last.flush()
		}
		last = p.sink
	}
	if last != nil {
		last.flush()
	}
}
