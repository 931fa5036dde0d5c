package consensus

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

// link is where a Client's calls go: the leader, over a stream or in process.
// Both methods are called with Client.mu held and only queue.
type link interface {
	take(calls ...*call)
	route(ids ...machine.SessionID)
}

func sortCalls(calls []*call) {
	slices.SortFunc(calls, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
}

const (
	lookEvery = 100 * time.Millisecond // a leader that owes answers and says nothing for so long is doubted
	retryWait = 10 * time.Millisecond
	retryMax  = 250 * time.Millisecond
)

// run keeps a link to the leader until ctx ends.
func (c *Client) run(ctx context.Context) {
	wait, attempt := retryWait, 0
	for ctx.Err() == nil {
		voterChanged := c.engine.changed()
		_, _, hintChanged := c.compass.read()
		target, began := c.pick(attempt), time.Now()
		if target != "" && c.follow(ctx, target) {
			wait, attempt = retryWait, -1
			if time.Since(began) > retryWait {
				attempt = 0
				continue
			}
		}
		attempt++
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
			wait = min(2*wait, retryMax)
		case <-hintChanged:
			wait, attempt = retryWait, 0
		case <-voterChanged:
			wait, attempt = retryWait, 0
		}
		timer.Stop()
	}
}

// pick returns whom to ask next: ourselves if we lead, the node that is said to
// lead, then every voter in turn.
func (c *Client) pick(attempt int) string {
	self := c.engine.cfg.Name
	if v := c.engine.replica(); v != nil && v.office() != nil {
		return self
	}
	c.engine.learnFromGossip()
	_, leader, _ := c.compass.read()
	if leader != "" && leader != self && attempt%2 == 0 {
		return leader
	}
	var others []string
	for _, name := range c.engine.voterNames() {
		if name != self {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return others[(attempt/2)%len(others)]
}

// follow is one link from its beginning to its end. It reports whether it was up.
func (c *Client) follow(ctx context.Context, target string) bool {
	if target == c.engine.cfg.Name {
		return c.followSelf(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	l := &remote{client: c, name: target, refused: newBell()}
	l.out.bell = newBell()
	term, _, _ := c.compass.read()
	l.term.Store(term)
	wg.Go(func() {
		defer cancel()
		c.lookOut(ctx, l)
	})
	opening, opened := context.WithTimeout(ctx, 2*time.Second)
	st, err := c.engine.cfg.Transport.Open(opening, target, transport.ClassCommand)
	opened()
	if err != nil {
		return false
	}
	stop := context.AfterFunc(ctx, st.Cancel)
	defer st.Cancel()
	defer stop()
	l.stream = st
	if !l.greet() {
		return false
	}
	c.up(l)
	c.notices.resync()
	wg.Go(func() {
		defer cancel()
		l.write(ctx)
	})
	l.read()
	cancel()
	wg.Wait()
	c.down(l)
	return true
}

// lookOut returns when there is somebody better to follow than l, or ctx ends. A
// node with a replica hears of a new leader from it; others ask the voters as soon
// as the leader owes answers and says nothing.
func (c *Client) lookOut(ctx context.Context, l *remote) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	var heard uint64
	var asking atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for {
		voterChanged := c.engine.changed()
		term, leader, hintChanged := c.compass.read()
		if leader != "" && leader != l.name && term > l.term.Load() {
			return
		}
		if v := c.engine.replica(); v != nil && v.office() != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-hintChanged:
		case <-voterChanged:
		case <-l.refused:
			if pause(ctx, retryWait) != nil {
				return
			}
			c.again(l)
		case <-ticker.C:
			before := heard
			heard = l.heard.Load()
			if heard == before && c.owed(l) && asking.CompareAndSwap(false, true) {
				wg.Go(func() {
					defer asking.Store(false)
					c.engine.askWhoLeads(ctx, l.name)
				})
			}
		}
	}
}

// owed reports whether l has calls without an answer, or is not up yet.
func (c *Client) owed(l link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link != l || len(c.calls) > 0
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// remote is a link over a stream.
type remote struct {
	client  *Client
	name    string
	stream  *transport.Stream
	out     mailbox[*call]
	refused bell // some calls are to be handed over again

	term  atomic.Uint64 // of the leader; before its welcome, that of the hint which is followed
	heard atomic.Uint64 // frames that came

	mu     sync.Mutex // guards what follows
	routes []machine.SessionID
}

func (l *remote) take(calls ...*call) {
	if len(calls) > 0 {
		l.out.put(calls...)
	}
}

func (l *remote) route(ids ...machine.SessionID) {
	l.mu.Lock()
	l.routes = append(l.routes, ids...)
	l.mu.Unlock()
	l.out.bell.ring()
}

// greet names the sessions of this node and waits until the peer says that it leads.
func (l *remote) greet() bool {
	c := l.client
	hello := appendHello(nil, c.engine.hash(), c.notices.sessions())
	if l.stream.WriteFrames(wire.AppendFrame(nil, frameHello, hello)) != nil {
		return false
	}
	typ, payload, err := l.stream.ReadFrame()
	if err != nil {
		return false
	}
	p := parser{b: payload}
	switch typ {
	case frameWelcome:
		term := p.number()
		l.term.Store(term)
		c.compass.learn(term, l.name)
		return p.err() == nil
	case frameMoved:
		if term, leader := p.moved(); p.err() == nil {
			c.compass.learn(term, leader)
		}
	}
	return false
}

// write sends whatever was queued while the last frame was written as one frame.
func (l *remote) write(ctx context.Context) {
	var buf []byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.out.bell:
		}
		l.mu.Lock()
		routes := l.routes
		l.routes = nil
		l.mu.Unlock()
		buf = buf[:0]
		if len(routes) > 0 {
			buf = wire.AppendFrame(buf, frameRoutes, appendSessions(nil, routes))
		}
		calls := l.out.take()
		for len(calls) > 0 {
			buf, calls = appendCalls(buf, calls)
			if l.stream.WriteFrames(buf) != nil {
				return
			}
			buf = buf[:0]
		}
		if len(buf) > 0 && l.stream.WriteFrames(buf) != nil {
			return
		}
	}
}

// appendCalls appends one frame of the first calls of a kind and returns the rest.
func appendCalls(b []byte, calls []*call) ([]byte, []*call) {
	at, typ := len(b), frameCommands
	if calls[0].query {
		typ = frameQueries
	}
	b = wire.BeginFrame(b, typ)
	n := 0
	for n < min(len(calls), maxBatch) && calls[n].query == calls[0].query && len(b)-at < frameGoal {
		k := calls[n]
		if n > 0 && len(b)-at+len(k.cmd) > maxFrame-64 {
			break
		}
		k.wrote.Store(true)
		b = appendItem(b, k.id, k.cmd)
		n++
	}
	wire.EndFrame(b, at)
	return b, calls[n:]
}

// read takes answers and events until the stream ends.
func (l *remote) read() {
	c := l.client
	var replies []reply
	for {
		typ, payload, err := l.stream.ReadFrame()
		if err != nil {
			return
		}
		l.heard.Add(1)
		p := parser{b: payload}
		switch typ {
		case frameAnswers:
			if replies, err = p.replies(replies[:0]); err != nil {
				return
			}
			if c.settle(l, replies) {
				l.refused.ring()
			}
		case frameEvents:
			events, err := p.events()
			if err != nil {
				return
			}
			c.notices.tell(events...)
		case frameMoved:
			if term, leader := p.moved(); p.err() == nil {
				c.compass.learn(term, leader)
			}
			return
		}
	}
}

func (p *parser) replies(into []reply) ([]reply, error) {
	own := bytes.Clone(p.b) // bodies live on in the results
	p.b = own
	for p.more() {
		r := reply{id: p.number()}
		if v := p.fixed(1); v != nil {
			r.verdict = verdict(v[0])
		}
		body := p.body()
		if p.bad {
			break
		}
		if r.verdict == answered {
			if err := machine.Decode(body, &r.result); err != nil {
				return into, err
			}
		}
		into = append(into, r)
	}
	return into, p.err()
}

func (p *parser) events() ([]machine.Event, error) {
	p.b = bytes.Clone(p.b)
	var all []machine.Event
	for p.more() {
		body := p.body()
		if p.bad {
			break
		}
		var e machine.Event
		if err := machine.Decode(body, &e); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, p.err()
}

// errStopped is the answer of a replica that serves nothing more.
var errStopped = errors.New("consensus: the replica has stopped")
