package consensus

import (
	"context"
	"sync"

	"github.com/clatter-go/clatter/internal/machine"
)

// sink is where a voter's answers and events go: a stream, or the Client of the
// same node. answer and event only queue; flush lets go what was queued. None blocks.
type sink interface {
	answer(id uint64, v verdict, r *machine.Result)
	event(e *machine.Event)
	flush()
}

// local is the link of a Client to the replica of its own node while that leads:
// no frame, no network.
type local struct {
	client  *Client
	voter   *voter
	refused bell

	mu      sync.Mutex // guards what follows
	replies []reply
	events  []machine.Event
}

func (c *Client) followSelf(ctx context.Context) bool {
	v := c.engine.replica()
	if v == nil {
		return false
	}
	o := v.office()
	if o == nil {
		return false
	}
	c.compass.learn(o.term, c.engine.cfg.Name)
	l := &local{client: c, voter: v, refused: newBell()}
	defer v.owners.drop(l)
	c.up(l)
	c.notices.resync()
	defer c.down(l)
	for {
		select {
		case <-ctx.Done():
			return true
		case <-o.over:
			return true
		case <-l.refused:
			if pause(ctx, retryWait) == nil {
				c.again(l)
			}
		}
	}
}

func (l *local) take(calls ...*call) {
	if len(calls) == 0 {
		return
	}
	batch := make([]proposal, 0, len(calls))
	for _, k := range calls {
		if k.query {
			q := &reading{sink: l, id: k.id, query: new(machine.Query)}
			if machine.Decode(k.cmd, q.query) == nil {
				l.voter.reads.put(q)
			}
			continue
		}
		k.wrote.Store(true)
		batch = append(batch, proposal{sink: l, id: k.id, cmd: k.cmd})
	}
	if len(batch) == 0 || l.voter.propose(batch...) {
		return
	}
	for _, k := range calls {
		if !k.query {
			k.link = nil
			k.wrote.Store(false)
		}
	}
	l.refused.ring()
}

func (l *local) route(ids ...machine.SessionID) { l.voter.owners.add(l, ids...) }

func (l *local) answer(id uint64, v verdict, r *machine.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := reply{id: id, verdict: v}
	if r != nil {
		one.result = *r
	}
	l.replies = append(l.replies, one)
}

func (l *local) event(e *machine.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, *e)
}

func (l *local) flush() {
	l.mu.Lock()
	replies, events := l.replies, l.events
	l.replies, l.events = nil, nil
	l.mu.Unlock()
	if len(replies) > 0 && l.client.settle(l, replies) {
		l.refused.ring()
	}
	if len(events) > 0 {
		l.client.notices.tell(events...)
	}
}
