package consensus

import (
	"errors"
	"sync"

	"github.com/clatter-go/clatter/internal/machine"
)

const (
	maxBacklog      = 16384
	maxBacklogBytes = 16 << 20
)

// errMoved ends a subscription that its watcher resumes at any voter.
var errMoved = errors.New("consensus: the subscription ended")

// hub fans the observable events out to the watchers of this voter. publish runs
// while the applier holds the machine, add while a reader does: so a subscription
// misses nothing between the history it was given and its first event.
type hub struct {
	mu   sync.Mutex // guards what follows
	subs map[*subscription]struct{}
}

// subscription is one watcher's queue. At its bound, 16 384 events or 16 MiB that
// the watcher has not taken, it ends, and the watcher resumes from history.
type subscription struct {
	watchRequest
	bell bell

	mu    sync.Mutex // guards what follows
	queue []Update
	bytes int
	ended error
}

func (h *hub) add(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.over() {
		return
	}
	if h.subs == nil {
		h.subs = map[*subscription]struct{}{}
	}
	h.subs[s] = struct{}{}
}

func (h *hub) drop(s *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, s)
}

func (h *hub) empty() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.subs) == 0
}

func (h *hub) publish(events []machine.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) == 0 {
		return
	}
	for i := range events {
		e := &events[i]
		if e.Session != 0 {
			continue
		}
		for s := range h.subs {
			if s.topic.Matches(s.name, e) {
				s.push(Update{Event: *e, Rev: e.Rev})
			}
		}
	}
}

// mark tells every watcher that it has seen everything up to rev.
func (h *hub) mark(rev machine.Rev) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.push(Update{Synced: true, Rev: rev})
	}
}

// end ends all subscriptions.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		s.end(errMoved)
	}
	h.subs = nil
}

func (s *subscription) push(u Update) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return
	}
	s.queue = append(s.queue, u)
	s.bytes += len(u.Event.Body)
	if len(s.queue) > maxBacklog || s.bytes > maxBacklogBytes {
		s.ended, s.queue = errMoved, nil
	}
	s.bell.ring()
}

func (s *subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
	}
	s.bell.ring()
}

func (s *subscription) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil
}

// take returns what is queued; once that is empty, how the subscription ended.
func (s *subscription) take() ([]Update, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.queue
	s.queue, s.bytes = nil, 0
	if len(got) > 0 {
		if s.ended != nil {
			s.bell.ring() // the end is still to be taken
		}
		return got, nil
	}
	return nil, s.ended
}

// open fills the subscription with the history after its request's revision and
// adds it to the hub. The caller holds the machine against changes.
func (s *subscription) open(h *hub, m *machine.Machine) error {
	switch {
	case s.now:
		s.queue = []Update{{Synced: true, Rev: revision(m)}}
	case s.topic == machine.TopicTasks:
		return &CompactedError{} // it keeps no history
	default:
		if err := s.recall(m); err != nil {
			return err
		}
	}
	s.bell.ring()
	h.add(s)
	return nil
}

func (s *subscription) recall(m *machine.Machine) error {
	at := s.from
	for {
		r := m.Query(&machine.Query{Kind: machine.QueryHistory, Topic: s.topic, Name: s.name, Rev: at})
		if r.Code != machine.OK {
			return &CompactedError{Oldest: r.Rev}
		}
		var page machine.EventList
		if err := machine.Decode(r.Body, &page); err != nil {
			return err
		}
		for _, e := range page.Events {
			s.queue = append(s.queue, Update{Event: e, Rev: e.Rev})
		}
		if at = max(at, r.Rev); r.N == 0 {
			break
		}
	}
	s.queue = append(s.queue, Update{Synced: true, Rev: at})
	return nil
}

// revision is that of the newest observable event.
func revision(m *machine.Machine) machine.Rev {
	return m.Query(&machine.Query{Kind: machine.QueryHistory, Rev: ^machine.Rev(0)}).Rev
}
