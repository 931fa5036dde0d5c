// Package counter has counters that add exactly once, also when a call is retried
// after a lost answer or a change of leader.
//
// # Concurrency
//
// Everything here may be called from any goroutine.
//
// # Failure
//
// Calls wait for a quorum until their ctx ends, then with [consensus.ErrNoQuorum] if
// nothing happened. A change whose outcome is unknown is a [*consensus.UnknownError].
// If the node's own session ended before the first copy of a change was applied, it
// is [consensus.ErrSessionExpired]: nothing happened, and the next call has a new one.
package counter

import (
	"context"
	"fmt"
	"sync"

	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// Counter is a signed 64-bit number known to the whole cluster by its name. It wraps around.
type Counter struct {
	keeper *session.Keeper
	name   string

	mu   sync.Mutex // guards next and end, the rest of a reserved block of ids
	next uint64
	end  uint64
}

// New returns the counter of that name: UTF-8 without control characters, 1 to 256
// bytes. Nothing is sent until it is used.
func New(k *session.Keeper, name string) *Counter { return &Counter{keeper: k, name: name} }

func (c *Counter) do(ctx context.Context, what string, op machine.Op, body machine.Message) (machine.Result, error) {
	if err := session.CheckName("counter", c.name); err != nil {
		return machine.Result{}, err
	}
	s, err := c.keeper.Default(ctx)
	if err != nil {
		return machine.Result{}, fmt.Errorf("%s counter %q: %w", what, c.name, err)
	}
	refused := func(res machine.Result) error {
		if res.Code == machine.OK || res.Code == machine.Conflict && op == machine.OpSwapCounter {
			return nil
		}
		return session.Refused(fmt.Sprintf("%s counter %q", what, c.name), res)
	}
	res, err := s.Do(ctx, op, body)
	session.OnRetry(err, refused)
	if err != nil {
		return res, fmt.Errorf("%s counter %q: %w", what, c.name, err)
	}
	return res, refused(res)
}

// Add adds delta and returns the new value. An unknown outcome can be asked for
// again through [consensus.UnknownError].Retry, after which N of its Outcome is the
// new value; calling Add again adds again.
func (c *Counter) Add(ctx context.Context, delta int64) (int64, error) {
	res, err := c.do(ctx, "add to", machine.OpAdd, &machine.Add{Name: c.name, Delta: delta})
	return int64(res.N), err
}

// CompareAndSwap sets the counter to new if it is old, and reports whether it was.
func (c *Counter) CompareAndSwap(ctx context.Context, old, new int64) (bool, error) {
	res, err := c.do(ctx, "swap", machine.OpSwapCounter, &machine.SwapCounter{Name: c.name, Old: old, New: new})
	return err == nil && res.Code == machine.OK, err
}

// Get returns the value, by a linearizable read. A counter never used is 0.
func (c *Counter) Get(ctx context.Context) (int64, error) {
	if err := session.CheckName("counter", c.name); err != nil {
		return 0, err
	}
	res, err := c.keeper.Query(ctx, &machine.Query{Kind: machine.QueryCounter, Name: c.name})
	if err == nil && res.Code != machine.OK {
		err = session.Refused("refused", res)
	}
	if err != nil {
		return 0, fmt.Errorf("read counter %q: %w", c.name, err)
	}
	return int64(res.N), nil
}

// block is how many ids are reserved with one command.
const block = 1000

// Next returns an id that no one else gets under this name. Ids are reserved in
// blocks of 1000 a handle, so they do not come in order and some are never used.
// They have a space of their own beside Add.
func (c *Counter) Next(ctx context.Context) (uint64, error) {
	for {
		c.mu.Lock()
		if c.next < c.end {
			c.next++
			defer c.mu.Unlock()
			return c.next - 1, nil
		}
		c.mu.Unlock()
		res, err := c.do(ctx, "reserve ids of", machine.OpIDBlock, &machine.IDBlock{Name: c.name, Size: block})
		if err != nil {
			return 0, err
		}
		c.mu.Lock()
		if c.next == c.end { // else another call was faster: its block is used first, this one is lost
			c.next, c.end = res.N, res.N+block
		}
		c.mu.Unlock()
	}
}
