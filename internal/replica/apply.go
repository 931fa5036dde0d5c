package replica

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/machine"
)

// ApplyEntries carries out a message of Work.Apply. It touches nothing but the
// machine and what never changes, so that the shell can run it on a goroutine of
// its own with the machine under a lock; the responses go back by Step. Entries
// that the machine has applied already are skipped. There is one Outcome for each
// entry with commands. After an error, a *FatalError, the replica must stop.
//
// Voter changes are applied to raft when Step takes the response, before raft
// learns that they are applied; Work.Conf tells the shell, which must know it
// before it takes a snapshot of this or a later index.
func (r *Replica) ApplyEntries(m *raftpb.Message) (outs []machine.Outcome, resp []*raftpb.Message, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, r.fatal("apply entries", p)
		}
	}()
	for _, e := range m.GetEntries() {
		if e.GetIndex() <= r.machine.Applied() {
			continue
		}
		var data []byte
		if e.GetType() == raftpb.EntryNormal {
			data = e.GetData()
		}
		out, err := r.machine.Apply(e.GetIndex(), e.GetTerm(), data)
		if err != nil {
			return outs, nil, r.fatal(fmt.Sprintf("apply entry %d", e.GetIndex()), err)
		}
		if len(data) > 0 {
			outs = append(outs, out)
		}
	}
	t := timersOf(r.machine)
	for _, one := range m.GetResponses() {
		resp = append(resp, &raftpb.Message{
			Type: one.Type, To: one.To, From: one.From, Term: one.Term, Entries: one.Entries, Context: t.encode(),
		})
	}
	return outs, resp, nil
}

// stepApplied takes the news that entries are applied.
func (r *Replica) stepApplied(m *raftpb.Message) error {
	t, ok := decodeTimers(m.GetContext())
	if !ok || len(m.GetEntries()) == 0 {
		return fmt.Errorf("%w: a response to applied entries is not one of ApplyEntries", ErrRefused)
	}
	for _, e := range m.GetEntries() {
		if e.GetType() == raftpb.EntryNormal {
			continue
		}
		if err := r.reconfigure(e); err != nil {
			r.err = r.fatal(fmt.Sprintf("change the voters at %d", e.GetIndex()), err)
			return r.err
		}
	}
	if err := r.raw.Step(m); err != nil {
		return err
	}
	r.timers = t
	if o := &r.office; o.expires != 0 && t.clock >= o.expires {
		o.expires = 0
	}
	if last := m.GetEntries()[len(m.GetEntries())-1]; r.state == raft.StateLeader && !r.office.serving && last.GetTerm() == r.term {
		r.enter(t)
	}
	return nil
}

// enter begins the office once an entry of the own term is applied: the first of
// them is raft's empty one, so that the machine's clock is that of the whole log.
func (r *Replica) enter(t timers) {
	s := r.raw.BasicStatus()
	if s.RaftState != raft.StateLeader || s.GetTerm() != r.term {
		return // lost meanwhile; the next Ready says so
	}
	r.office = office{serving: true, clock0: t.clock, last: t.clock}
	for _, m := range r.early {
		_ = r.raw.Step(m) // a round that raft does not take is one that got lost
	}
	r.early = nil
}

func (r *Replica) reconfigure(e *raftpb.Entry) error {
	switch e.GetType() {
	case raftpb.EntryConfChange:
		cc := &raftpb.ConfChange{}
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			return err
		}
		r.conf = r.raw.ApplyConfChange(cc)
	case raftpb.EntryConfChangeV2:
		cc := &raftpb.ConfChangeV2{}
		if err := proto.Unmarshal(e.GetData(), cc); err != nil {
			return err
		}
		r.conf = r.raw.ApplyConfChange(cc)
	default:
		return errors.New("unknown type of entry")
	}
	return nil
}
