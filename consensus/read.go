package consensus

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/clatter-go/clatter/internal/machine"
)

// reading is one linearizable read: a query, or a look at the machine.
type reading struct {
	sink  sink // with query: where the answer goes
	id    uint64
	query *machine.Query
	look  func(*machine.Machine) // instead of query; the machine does not change while it runs
	done  chan error             // with look: gets nil after it, or why it was not called; one deep
}

// confirmed is the answer to one round: the state at index is current enough for
// every reading that came before the round began.
type confirmed struct {
	round uint64
	index uint64
}

// reader runs the readings in batches (consensus.md 5.1): one round of ReadIndex is
// in flight, whoever comes meanwhile joins the next. A round that got lost is
// repeated under a fresh number; an answer to an old one would be stale.
func (v *voter) reader(ctx context.Context) {
	var round uint64
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	var batch []*reading
	for {
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-v.reads.bell:
			}
		}
		batch = append(batch, v.reads.take()...)
		if len(batch) == 0 {
			continue
		}
		round++
		id := roundID(v.id, round)
		v.order(func() { v.loop.rep.ReadIndex(id) })
		retry.Reset(time.Duration(2*v.pace.Heartbeat) * v.pace.Tick)
		index, ok := v.awaitRound(ctx, round, retry.C)
		if ctx.Err() != nil {
			return
		}
		ok = ok && v.awaitApplied(ctx, index, retry)
		switch {
		case ok:
			v.runReadings(batch)
		case v.quiet.Load():
			sendAway(batch)
		default:
			continue
		}
		clear(batch)
		batch = batch[:0]
	}
}

func (v *voter) awaitRound(ctx context.Context, round uint64, late <-chan time.Time) (index uint64, ok bool) {
	for {
		select {
		case <-ctx.Done():
			return 0, false
		case <-late:
			return 0, false
		case c := <-v.confirmed:
			if c.round == round {
				return c.index, true
			}
		}
	}
}

// awaitApplied reports false if that takes as long as the disk hangs.
func (v *voter) awaitApplied(ctx context.Context, index uint64, look *time.Timer) bool {
	for v.applied.Load() < index {
		if v.quiet.Load() {
			return false
		}
		look.Reset(time.Duration(2*v.pace.Heartbeat) * v.pace.Tick)
		select {
		case <-ctx.Done():
			return false
		case <-v.appliedBell:
		case <-look.C:
		}
	}
	return true
}

func (v *voter) runReadings(batch []*reading) {
	v.mu.RLock()
	for _, r := range batch {
		if r.look != nil {
			r.look(v.machine)
			r.done <- nil
			continue
		}
		answer := v.machine.Query(r.query)
		r.sink.answer(r.id, answered, &answer)
	}
	v.mu.RUnlock()
	flushAll(batch)
}

// sendAway has readings made elsewhere: this replica is silent until its disk answers.
func sendAway(batch []*reading) {
	for _, r := range batch {
		if r.look != nil {
			r.done <- errStopped
			continue
		}
		r.sink.answer(r.id, notTaken, nil)
	}
	flushAll(batch)
}

// flushAll lets go the answers of a batch, once per sink in a row.
func flushAll(batch []*reading) {
	var last sink
	for _, r := range batch {
		if r.sink != nil && r.sink != last {
			if last != nil {
				last.flush()
			}
			last = r.sink
		}
	}
	if last != nil {
		last.flush()
	}
}

// look runs fn on the machine in a state that is at least as new as this call.
func (v *voter) look(ctx context.Context, fn func(*machine.Machine)) error {
	if v.quiet.Load() {
		return errStopped
	}
	r := &reading{look: fn, done: make(chan error, 1)}
	if !v.reads.put(r) {
		return ErrOverloaded
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-v.broken:
		return errStopped
	case <-v.ctx.Done():
		return errStopped
	}
}

func (v *voter) query(ctx context.Context, q *machine.Query) (machine.Result, error) {
	answer := make(chan machine.Result, 1)
	err := v.look(ctx, func(m *machine.Machine) { answer <- m.Query(q) })
	switch {
	case err == nil:
		return <-answer, nil
	case ctx.Err() != nil:
		return machine.Result{}, noQuorum(ctx, "query", v.engine.why())
	}
	return machine.Result{}, err
}

func (v *voter) subscribe(ctx context.Context, w watchRequest) (*subscription, error) {
	s := &subscription{watchRequest: w, bell: newBell()}
	opened := make(chan error, 1)
	if err := v.look(ctx, func(m *machine.Machine) { opened <- s.open(&v.hub, m) }); err != nil {
		s.end(errMoved) // before the drop: an ended one is not added any more
		v.hub.drop(s)
		return nil, err
	}
	return s, <-opened
}

// marker tells watchers how far they are, as long as this voter is in touch with
// the leader: silence makes them move to another voter.
func (v *voter) marker(ctx context.Context) {
	ticker := time.NewTicker(markEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if v.hub.empty() {
			continue
		}
		_ = v.look(ctx, func(m *machine.Machine) { v.hub.mark(revision(m)) })
	}
}

func roundID(raftID, round uint64) []byte {
	b := binary.BigEndian.AppendUint64(nil, raftID)
	return binary.BigEndian.AppendUint64(b, round)
}

func roundOf(id []byte, raftID uint64) (round uint64, ok bool) {
	if len(id) != 16 || binary.BigEndian.Uint64(id) != raftID {
		return 0, false
	}
	return binary.BigEndian.Uint64(id[8:]), true
}
