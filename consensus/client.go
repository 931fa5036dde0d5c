package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/clatter-go/clatter/internal/machine"
)

const (
	maxOutstanding      = 16384
	maxOutstandingBytes = 64 << 20
)

// Client is a node's way to the cluster: commands to the leader, over one stream
// or in process where this node leads, reads to the nearest voter, watches, and
// the events of the node's sessions.
//
// All its methods may be called from any number of goroutines. After the Engine's
// Close every call ends with ErrClosed.
type Client struct {
	engine *Engine
	compass
	notices dispatcher

	mu     sync.Mutex // guards what follows
	calls  map[uint64]*call
	last   uint64 // id of the newest call
	bytes  int    // of all outstanding calls
	link   link   // where calls go now; nil while there is no leader
	closed bool
}

// call is one command or query on its way.
type call struct {
	id     uint64
	cmd    []byte
	query  bool
	urgent bool // taken beyond the bounds on what is outstanding
	done   chan struct{}
	wrote  atomic.Bool // the link began to write it

	// What follows is guarded by Client.mu; after done is closed it is the caller's.
	link   link // has it and has not answered; nil: waits for the next link
	unsure bool // some earlier attempt may be in the log: sticky (protocol 25)
	over   bool
	result machine.Result
	err    error
}

// reply is the answer to one attempt of a call.
type reply struct {
	id      uint64
	verdict verdict
	result  machine.Result
}

func newClient(e *Engine) *Client {
	c := &Client{engine: e, calls: map[uint64]*call{}}
	c.compass.changed = make(chan struct{})
	c.notices.start()
	return c
}

// Do brings a command to the leader and returns its answer once it is applied: a
// majority then has it on disk. The same bytes are sent again after every lost
// stream and change of leader until ctx ends, so cmd carries a session and a
// sequence, or is harmless when it is applied twice.
//
// A refusal by the machine is an answer: see the Code of the result. Errors are
// ErrNoQuorum (nothing happened) or an *UnknownError when ctx ends, ErrOverloaded
// beyond 16 384 outstanding calls or 64 MiB of them (commands that renew or give back
// are taken all the same), ErrInvalid for a command
// above 2 MiB, ErrClosed.
func (c *Client) Do(ctx context.Context, cmd machine.Cmd) (machine.Result, error) {
	b := machine.Encode(&cmd)
	if len(b) > maxCommand {
		return machine.Result{}, fmt.Errorf("do: %w: a command of %d bytes, at most %d are allowed", ErrInvalid, len(b), maxCommand)
	}
	return c.send(ctx, &call{cmd: b, urgent: urgent(cmd.Op), done: make(chan struct{})})
}

// urgent commands keep what a node has or give it back. They are taken beyond the
// bounds: a node that is busy must not lose its sessions for that.
func urgent(op machine.Op) bool {
	switch op {
	case machine.OpKeepAlive, machine.OpCloseSession, machine.OpRelease, machine.OpCancelWait:
		return true
	}
	return false
}

// Query reads the state linearizably: what it returns was current at some moment
// during the call. It asks this node's replica if there is one, else the leader,
// and is repeated until ctx ends, then with ErrNoQuorum.
func (c *Client) Query(ctx context.Context, q *machine.Query) (machine.Result, error) {
	if v := c.engine.replica(); v != nil {
		r, err := v.query(ctx, q)
		if !errors.Is(err, errStopped) {
			return r, err
		}
	}
	return c.send(ctx, &call{cmd: machine.Encode(q), query: true, done: make(chan struct{})})
}

func (c *Client) send(ctx context.Context, k *call) (machine.Result, error) {
	if err := c.add(ctx, k); err != nil {
		return machine.Result{}, err
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		c.giveUp(ctx, k)
	}
	return k.result, k.err
}

func (c *Client) add(ctx context.Context, k *call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return ErrClosed
	case ctx.Err() != nil:
		c.conclude(k, ctx)
		return k.err
	case !k.urgent && (len(c.calls) >= maxOutstanding || c.bytes+len(k.cmd) > maxOutstandingBytes):
		return fmt.Errorf("do: %w: %d calls (%d bytes) are outstanding on this node: wait for some of them", ErrOverloaded, len(c.calls), c.bytes)
	}
	c.last++
	k.id = c.last
	c.calls[k.id] = k
	c.bytes += len(k.cmd)
	if c.link != nil {
		c.hand(c.link, k)
	}
	return nil
}

// hand gives a call to a link. c.mu is held.
func (c *Client) hand(l link, calls ...*call) {
	for _, k := range calls {
		k.link = l
		k.wrote.Store(false)
	}
	l.take(calls...)
}

// giveUp ends a call whose context ended, unless it was answered just now.
func (c *Client) giveUp(ctx context.Context, k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !k.over {
		c.conclude(k, ctx)
		c.finish(k)
	}
}

// conclude says what is known of a call that ends without an answer.
func (c *Client) conclude(k *call, ctx context.Context) {
	sent := k.unsure || k.link != nil && k.wrote.Load()
	var why string
	if c.link == nil {
		why = c.engine.why()
	}
	end := noQuorum(ctx, "do", why)
	if k.query || !sent {
		k.err = end
		return
	}
	cause := ctx.Err()
	if why := context.Cause(ctx); why != cause {
		cause = fmt.Errorf("%w: %w", why, cause)
	}
	k.err = &UnknownError{cmd: k.cmd, client: c, cause: cause}
}

// finish takes a call out of the books and wakes its caller. c.mu is held.
func (c *Client) finish(k *call) {
	if _, ok := c.calls[k.id]; ok {
		delete(c.calls, k.id)
		c.bytes -= len(k.cmd)
	}
	k.over = true
	close(k.done)
}

// settle takes the replies that a link brought. It reports whether some calls
// wait to be handed over again.
func (c *Client) settle(l link, replies []reply) (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range replies {
		r := &replies[i]
		k := c.calls[r.id]
		if k == nil {
			continue
		}
		if r.verdict == answered { // of whatever attempt: all attempts are one command
			k.result = r.result
			if k.unsure && !k.query && r.result.Code == machine.NoSession && r.result.N == 0 {
				// An earlier attempt may have been applied before the session ended.
				k.err = &UnknownError{cmd: k.cmd, client: c, cause: ErrSessionExpired}
			}
			c.finish(k)
			continue
		}
		k.unsure = k.unsure || r.verdict == uncertain
		if k.link == l {
			k.link = nil
			again = true
		}
	}
	return again
}

// up makes l the link of all calls: those without an answer are sent once more,
// in the order in which they were made.
func (c *Client) up(l link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.link = l
	l.route(c.notices.sessions()...)
	c.handWaiting(l)
}

// again hands over the calls that l refused a moment ago.
func (c *Client) again(l link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.handWaiting(l)
	}
}

func (c *Client) handWaiting(l link) {
	var waiting []*call
	for _, k := range c.calls {
		if k.link == nil {
			waiting = append(waiting, k)
		}
	}
	sortCalls(waiting)
	c.hand(l, waiting...)
}

// down takes l away: what it was given and did not answer may be in the log.
func (c *Client) down(l link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == l {
		c.link = nil
	}
	for _, k := range c.calls {
		if k.link == l {
			k.link = nil
			k.unsure = k.unsure || k.wrote.Load()
		}
	}
}

// close ends every call.
func (c *Client) close() {
	c.mu.Lock()
	c.closed = true
	c.link = nil
	for _, k := range c.calls {
		sent := k.unsure || k.link != nil && k.wrote.Load()
		if k.err = ErrClosed; sent && !k.query {
			k.err = &UnknownError{cmd: k.cmd, client: c, cause: ErrClosed}
		}
		c.finish(k)
	}
	c.mu.Unlock()
	c.notices.stop()
}
