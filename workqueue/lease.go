package workqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// lease keeps one claim session for all durable queues of this node that have the
// same Config.Lease, and opens the next one when it is lost.
type lease struct {
	engine *Engine
	ttl    time.Duration
	queues []*durable // under Engine.mu

	mu      sync.Mutex // guards what follows
	running bool
	closing bool
	current Claimer          // nil between sessions
	hands   map[string]*hand // of the current session, by queue
}

// lease returns the lease of that length. Engine.mu is held.
func (e *Engine) lease(ttl time.Duration) *lease {
	l, ok := e.leases[ttl]
	if !ok {
		l = &lease{engine: e, ttl: ttl}
		e.leases[ttl] = l
	}
	return l
}

// join sees to it that the queue has a hand, or will have one with the next session.
func (l *lease) join(d *durable) {
	l.mu.Lock()
	if l.current == nil || l.hands[d.queue] != nil {
		if !l.running && !l.closing {
			l.running = l.engine.run(l.keep)
		}
		l.mu.Unlock()
		return
	}
	h := newHand(d, l.current)
	l.hands[d.queue] = h
	l.mu.Unlock()
	d.take(h)
}

// keep opens one session after the other until the engine ends or drains.
func (l *lease) keep() {
	e := l.engine
	for pause := 50 * time.Millisecond; ; {
		ctx, cancel := context.WithTimeout(e.ctx, 10*time.Second)
		c, err := e.ledger.Open(ctx, l.ttl)
		cancel()
		if err != nil {
			if !e.sleep(pause) {
				return
			}
			if !errors.Is(err, consensus.ErrClosed) { // the node closes: so will we
				e.log.Warn("no session to claim tasks under", "lease", l.ttl, "err", err, "again", pause)
			}
			pause = min(2*pause, 2*time.Second)
			continue
		}
		pause = 50 * time.Millisecond
		if !l.bind(c) {
			return
		}
		select {
		case <-c.Context().Done():
		case <-e.ctx.Done():
		}
		if l.unbind() {
			return
		}
		if cause := context.Cause(c.Context()); !errors.Is(cause, consensus.ErrClosed) {
			e.log.Warn("the session that tasks were claimed under has ended", "lease", l.ttl, "cause", cause)
		}
	}
}

// sleep waits; false: the engine ends.
func (e *Engine) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}

// bind gives every queue a hand under the new session. False: the lease was closed,
// and the session, which claims nothing, is left to expire.
func (l *lease) bind(c Claimer) bool {
	l.engine.mu.Lock()
	queues := slices.Clone(l.queues)
	l.engine.mu.Unlock()
	l.mu.Lock()
	if l.closing {
		l.mu.Unlock()
		return false
	}
	l.current, l.hands = c, make(map[string]*hand, len(queues))
	l.mu.Unlock()
	c.Events(l.notice)
	for _, d := range queues {
		l.join(d)
	}
	return true
}

// unbind drops the hands of a session that has ended. True: there is to be no other one.
func (l *lease) unbind() bool {
	l.mu.Lock()
	hands := l.hands
	l.current, l.hands = nil, nil
	over := l.closing
	l.mu.Unlock()
	for _, h := range hands {
		h.drop()
	}
	return over || l.engine.ctx.Err() != nil
}

// notice takes what the ledger tells a session. It does not block.
func (l *lease) notice(ev machine.Event) {
	l.mu.Lock()
	h := l.hands[ev.Name]
	var all []*hand
	if ev.Kind == 0 {
		all = slices.Collect(maps.Values(l.hands))
	}
	l.mu.Unlock()
	for _, h := range all {
		h.recheck()
	}
	if h == nil || ev.Session != 0 && ev.Session != h.claimer.ID() {
		return
	}
	switch ev.Kind {
	case machine.EventAssigned:
		var a machine.Assignment
		if err := machine.Decode(ev.Body, &a); err != nil {
			l.engine.log.Warn("an assignment is malformed", "queue", ev.Name, "err", err)
			h.recheck()
			return
		}
		h.assigned(a)
	case machine.EventCancel:
		h.revoke(machine.TaskID(ev.N), ev.Token)
	}
}

// close ends the session for good once all ends are reported. If ctx ends before,
// it is left to expire: closing it would hand back what is still running.
func (l *lease) close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	c := l.current
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	l.engine.mu.Lock()
	queues := slices.Clone(l.queues)
	l.engine.mu.Unlock()
	for _, d := range queues {
		if err := d.reported(ctx); err != nil {
			return fmt.Errorf("hand back the tasks of %q: %w", d.queue, err)
		}
	}
	if err := c.Close(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = nil
	return nil
}
