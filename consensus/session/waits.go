package session

import (
	"context"
	"maps"
	"slices"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// wait is an Acquire that may stand in line.
type wait struct {
	space   machine.Space
	name    string
	granted chan machine.Event
}

// Await registers for the grant of the wait that the Acquire with sequence seq may
// become. It is called before that command is sent. The channel receives at most
// one event; forget is called when nobody listens any more.
func (s *Session) Await(seq uint64, space machine.Space, name string) (granted <-chan machine.Event, forget func()) {
	w := wait{space: space, name: name, granted: make(chan machine.Event, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[seq] = w
	return w.granted, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waits, seq)
	}
}

// Tasks registers who is told of task assignments and cancellations, and by an
// event of Kind 0 that some may have been missed. fn must not block.
func (s *Session) Tasks(fn func(machine.Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = fn
}

// event takes what the cluster pushes for this session. It must not block.
func (s *Session) event(e machine.Event) {
	switch e.Kind {
	case machine.EventGranted:
		s.grant(e.Seq, e)
	case machine.EventClosed:
		s.end(consensus.ErrSessionExpired)
	case machine.EventAssigned, machine.EventCancel:
		s.mu.Lock()
		fn := s.tasks
		if e.Kind == machine.EventAssigned {
			s.assigned = max(s.assigned, e.N)
		}
		s.mu.Unlock()
		if fn != nil {
			fn(e)
		}
	case 0: // another leader: whatever the old one had to tell may be lost
		s.ask(nil)
		s.mu.Lock()
		fn := s.tasks
		s.mu.Unlock()
		if fn != nil {
			fn(e)
		}
	}
}

// grant tells whoever waits. If nobody does it is a copy, or the wait was given up
// and its CancelWait is on the way.
func (s *Session) grant(seq uint64, e machine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := s.waits[seq]; ok {
		delete(s.waits, seq)
		w.granted <- e // has room for the one event it ever gets
	}
}

// ask asks again for the state of every wait: its grant may have been told to nobody
// (protocol 15). grants, if it is known, is the cluster's count of the session's
// grants: as long as that stands still nothing can have been missed. It is compared
// with what it was at the last asking, never with notices counted here, which may
// still be on their way.
func (s *Session) ask(grants *uint64) {
	s.mu.Lock()
	idle := s.asking || grants != nil && *grants == s.grants
	if grants != nil && len(s.waits) == 0 {
		s.grants = *grants
	}
	waits := maps.Clone(s.waits)
	if idle = idle || len(waits) == 0; !idle {
		s.asking = true
	}
	s.mu.Unlock()
	if idle {
		return
	}
	s.keeper.Go(func(ctx context.Context) {
		complete := s.askFor(ctx, waits)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asking = false
		if complete && grants != nil {
			s.grants = *grants
		}
	})
}

// askFor reports whether all waits were answered for.
func (s *Session) askFor(ctx context.Context, waits map[uint64]wait) (complete bool) {
	ctx, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	for _, seq := range slices.Sorted(maps.Keys(waits)) {
		w := waits[seq]
		res, err := s.keeper.Query(ctx, &machine.Query{Kind: machine.QueryWait, Session: s.id, Seq: seq, Space: w.space, Name: w.name})
		if err != nil {
			return false
		}
		if res.Code == machine.OK {
			s.grant(seq, machine.Event{Kind: machine.EventGranted, Session: s.id, Seq: seq, Token: res.Token})
		}
	}
	return true
}
