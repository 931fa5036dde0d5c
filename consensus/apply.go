package consensus

import (
	"context"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/machine"
)

// applier applies what is committed and durable here, tells the waiters and the
// watchers, and takes snapshots.
func (v *voter) applier(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.applies.bell:
		}
		for _, m := range v.applies.take() {
			if err := v.apply(m); err != nil {
				v.poison(fmt.Errorf("apply: %w", err))
				return
			}
		}
	}
}

func (v *voter) apply(m *raftpb.Message) error {
	v.mu.Lock()
	outs, responses, err := v.loop.rep.ApplyEntries(m)
	for i := range outs {
		v.hub.publish(outs[i].Events)
	}
	applied := v.machine.Applied()
	v.mu.Unlock()
	if err != nil {
		return err
	}
	v.applied.Store(applied)
	v.appliedBell.ring()
	v.deliver(responses)
	var touched sinks
	for i := range outs {
		v.answer(&outs[i], &touched)
	}
	for _, s := range touched {
		s.flush()
	}
	return v.snap.consider(v, len(m.GetEntries()))
}

// sinks are the sinks that something was queued for, each once.
type sinks []sink

func (t *sinks) add(s sink) {
	for _, have := range *t {
		if have == s {
			return
		}
	}
	*t = append(*t, s)
}

func (v *voter) answer(out *machine.Outcome, touched *sinks) {
	if out.Stamp.Proposer == v.proposer {
		for i, p := range v.waiting.take(out.Stamp.Number) {
			p.sink.answer(p.id, answered, &out.Answers[i].Result)
			touched.add(p.sink)
		}
	}
	for i := range out.Events {
		e := &out.Events[i]
		if e.Session == 0 {
			continue
		}
		if s := v.owners.of(e.Session); s != nil {
			s.event(e)
			touched.add(s)
		}
		if e.Kind == machine.EventClosed {
			v.owners.forget(e.Session)
		}
	}
}
