package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrStaleToken means that a later holder has used the resource already.
var ErrStaleToken = errors.New("the fencing token is stale: a later holder was admitted")

// Fence refuses those who have lost their lock and do not know it yet. It admits
// tokens that are at least as large as any that it has seen for a resource: equal
// is the same holder writing again.
//
// Admit alone narrows the window: between it and what the caller does next a later
// holder may be admitted. Only a check inside the resource's own transaction, or
// Run in the one process that owns the resource, closes it.
type Fence interface {
	// Admit returns ErrStaleToken if a larger token was admitted for the resource.
	Admit(ctx context.Context, resource string, t Token) error
	// Run admits t and keeps larger tokens waiting until fn has returned.
	Run(ctx context.Context, resource string, t Token, fn func(context.Context) error) error
}

// NewMemoryFence returns a fence for resources that this process alone owns. It
// remembers one token a resource for as long as it lives.
func NewMemoryFence() Fence { return &memoryFence{slots: map[string]*slot{}} }

type memoryFence struct {
	mu    sync.Mutex // guards slots, and highest in each
	slots map[string]*slot
}

// slot is one resource. Whoever has sent into busy runs.
type slot struct {
	highest Token
	busy    chan struct{}
}

func (f *memoryFence) slot(resource string) *slot {
	s := f.slots[resource]
	if s == nil {
		s = &slot{busy: make(chan struct{}, 1)}
		f.slots[resource] = s
	}
	return s
}

func (f *memoryFence) check(resource string, t Token) (*slot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.slot(resource)
	if t < s.highest {
		return nil, fmt.Errorf("%q: token %d after %d: %w", resource, t, s.highest, ErrStaleToken)
	}
	s.highest = t
	return s, nil
}

func (f *memoryFence) Admit(ctx context.Context, resource string, t Token) error {
	return f.Run(ctx, resource, t, func(context.Context) error { return nil })
}

func (f *memoryFence) Run(ctx context.Context, resource string, t Token, fn func(context.Context) error) error {
	s, err := f.check(resource, t)
	if err != nil {
		return err
	}
	select {
	case s.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%q is in use by another holder: %w", resource, context.Cause(ctx))
	}
	defer func() { <-s.busy }()
	if _, err := f.check(resource, t); err != nil { // a larger one came while this one waited
		return err
	}
	return fn(ctx)
}
