package consensus

import (
	"sync"

	"github.com/clatter-go/clatter/internal/machine"
)

// owners knows to which sink the events of each session go: the one that named the
// session last.
type owners struct {
	mu    sync.Mutex // guards what follows
	sinks map[machine.SessionID]sink
}

func (o *owners) add(s sink, ids ...machine.SessionID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sinks == nil {
		o.sinks = map[machine.SessionID]sink{}
	}
	for _, id := range ids {
		o.sinks[id] = s
	}
}

// drop forgets a sink that has ended.
func (o *owners) drop(s sink) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, of := range o.sinks {
		if of == s {
			delete(o.sinks, id)
		}
	}
}

// forget drops a session that has ended.
func (o *owners) forget(id machine.SessionID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.sinks, id)
}

func (o *owners) of(id machine.SessionID) sink {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sinks[id]
}
