package consensus

import (
	"slices"
	"sync"

	"github.com/clatter-go/clatter/internal/machine"
)

const maxNotices = 65536

// EventResync is the Kind of the event that tells a route that events may have
// been lost: its owner asks for its waits and claims by Query.
const EventResync machine.EventKind = 0

// Route has fn called with every event of a session of this node, in their order,
// and with an event of kind EventResync whenever some may have been lost: after a
// change of leader, a lost stream or an overflow of 65 536 events. fn runs on one
// goroutine for all routes and must not block. It may run once more just after
// stop was called.
//
// Register a session's route before its first command: events go to the node whose
// stream last named the session.
func (c *Client) Route(id machine.SessionID, fn func(machine.Event)) (stop func()) {
	r := &route{id: id, fn: fn}
	first := c.notices.add(r)
	if first {
		c.mu.Lock()
		if c.link != nil {
			c.link.route(id)
		}
		c.mu.Unlock()
	}
	return func() { c.notices.remove(r) }
}

type route struct {
	id machine.SessionID
	fn func(machine.Event)
}

// dispatcher calls the routes of events on a goroutine of its own, so that neither
// a stream nor the applier waits for an owner.
type dispatcher struct {
	queue mailbox[machine.Event]
	done  chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	routes map[machine.SessionID][]*route
	lost   bool // events were dropped: every route is to be told
}

func (d *dispatcher) start() {
	d.routes = map[machine.SessionID][]*route{}
	d.done = make(chan struct{})
	d.queue.bell = newBell()
	d.queue.max = maxNotices
	d.wg.Go(d.run)
}

func (d *dispatcher) stop() {
	close(d.done)
	d.wg.Wait()
}

func (d *dispatcher) run() {
	for {
		select {
		case <-d.done:
			return
		case <-d.queue.bell:
		}
		for _, e := range d.queue.take() {
			for _, r := range d.of(e.Session) {
				r.fn(e)
			}
		}
		d.tellLost()
	}
}

func (d *dispatcher) of(id machine.SessionID) []*route {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.routes[id]
}

func (d *dispatcher) tellLost() {
	d.mu.Lock()
	var all []*route
	if d.lost {
		for _, rs := range d.routes {
			all = append(all, rs...)
		}
	}
	d.lost = false
	d.mu.Unlock()
	for _, r := range all {
		r.fn(machine.Event{Kind: EventResync, Session: r.id})
	}
}

// tell queues events; at the bound they are dropped and all routes resync.
func (d *dispatcher) tell(events ...machine.Event) {
	if !d.queue.put(events...) {
		d.resync()
	}
}

func (d *dispatcher) resync() {
	d.mu.Lock()
	d.lost = true
	d.mu.Unlock()
	d.queue.bell.ring()
}

// add reports whether this is the session's first route. Lists are replaced, never
// changed: run walks them without the lock.
func (d *dispatcher) add(r *route) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.routes[r.id]
	d.routes[r.id] = append(slices.Clone(old), r)
	return len(old) == 0
}

func (d *dispatcher) remove(r *route) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(d.routes[r.id]), func(o *route) bool { return o == r })
	if d.routes[r.id] = left; len(left) == 0 {
		delete(d.routes, r.id)
	}
}

func (d *dispatcher) sessions() []machine.SessionID {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]machine.SessionID, 0, len(d.routes))
	for id := range d.routes {
		all = append(all, id)
	}
	return all
}
