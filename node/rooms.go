package node

import (
	"context"
	"iter"
	"net/netip"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/membership"
	"github.com/clatter-go/clatter/transport"
	"github.com/clatter-go/clatter/workqueue"
)

// The rooms do not know one another: here is what one needs of another.

func (p Pace) consensus() consensus.Pace {
	return [...]consensus.Pace{consensus.LAN, consensus.Fast, consensus.WAN}[p]
}

func (p Pace) gossip() membership.Pace {
	return [...]membership.Pace{membership.LAN, membership.Fast, membership.WAN}[p]
}

// roster is what consensus needs of membership.
type roster struct{ list *membership.List }

func (r roster) Changed() <-chan struct{} { return r.list.Changed() }
func (r roster) Seeds() []netip.AddrPort  { return r.list.Seeds() }

func (r roster) Peers() []consensus.Peer {
	seen := r.list.Peers()
	all := make([]consensus.Peer, len(seen))
	for i, p := range seen {
		all[i] = consensus.Peer{
			Name: p.Name, Boot: p.Boot, Addr: p.Addr, Dead: p.State == membership.StateFailed,
			Announcement: consensus.Announcement{
				RaftID: p.Note.RaftID, Cluster: p.Note.Cluster, Phase: p.Note.Phase, Voter: p.Note.Voter, Leader: p.Note.Leader,
				NoDir: p.Note.NoDir, Eligible: p.Note.Eligible, Digest: p.Note.Digest, Term: p.Note.Term,
			},
		}
	}
	return all
}

func (r roster) Announce(a consensus.Announcement) {
	r.list.Note(membership.Note{
		RaftID: a.RaftID, Cluster: a.Cluster, Phase: a.Phase, Voter: a.Voter, Leader: a.Leader,
		NoDir: a.NoDir, Eligible: a.Eligible, Digest: a.Digest, Term: a.Term,
	})
}

// ledger is what workqueue needs of consensus.
type ledger struct{ keeper *session.Keeper }

func (l ledger) Query(ctx context.Context, q *machine.Query) (machine.Result, error) {
	return l.keeper.Query(ctx, q)
}

func (l ledger) Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error) {
	s, err := l.keeper.Default(ctx)
	if err != nil {
		return machine.Result{}, err
	}
	return s.Do(ctx, op, body)
}

func (l ledger) Watch(ctx context.Context, topic machine.Topic, name string, from machine.Rev) iter.Seq2[machine.Event, error] {
	return func(yield func(machine.Event, error) bool) {
		for u, err := range l.keeper.Watch(ctx, topic, name, from) {
			if err == nil && u.Synced {
				u.Event = machine.Event{Rev: u.Rev}
			}
			if !yield(u.Event, err) {
				return
			}
		}
	}
}

func (l ledger) Open(ctx context.Context, ttl time.Duration) (workqueue.Claimer, error) {
	s, err := l.keeper.Open(ctx, ttl)
	if err != nil {
		return nil, err
	}
	return claimer{s}, nil
}

// claimer is a session that tasks are claimed under.
type claimer struct{ *session.Session }

func (c claimer) ID() machine.SessionID         { return machine.SessionID(c.Session.ID()) }
func (c claimer) Events(fn func(machine.Event)) { c.Tasks(fn) }

// peers is what workqueue needs of transport and membership.
type peers struct {
	wire *transport.Transport
	list *membership.List
}

func (p peers) Self() string             { return p.wire.Self().Name }
func (p peers) Changed() <-chan struct{} { return p.list.Changed() }

func (p peers) List() []workqueue.Peer {
	seen := p.list.Peers()
	all := make([]workqueue.Peer, 0, len(seen))
	for _, o := range seen {
		all = append(all, workqueue.Peer{Name: o.Name, Boot: o.Boot, Alive: o.State != membership.StateFailed})
	}
	return all
}

func (p peers) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	return p.wire.Call(ctx, to, method, req)
}

func (p peers) Answer(method string, h func(ctx context.Context, from string, boot uint64, req []byte) ([]byte, error)) {
	p.wire.Answer(method, func(ctx context.Context, from transport.Peer, req []byte) ([]byte, error) {
		return h(ctx, from.Name, from.Boot, req)
	})
}
