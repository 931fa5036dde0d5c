package lock

import (
	"context"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/internal/hold"
)

// nest makes a hold inside root, under the ctx of its Lock.
func nest(ctx context.Context, root *hold.Hold) *Hold {
	h := &Hold{root: root}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(root.Context(), func() { cancel(context.Cause(root.Context())) })
	h.ctx, h.end = inner, func(cause error) { stop(); cancel(cause) }
	return h
}

// Context ends before a successor can exist, and with the hold. Its cause says
// why: [ErrLost], [ErrReleased]. It carries the values of the ctx given to Lock,
// and marks calls made under it as made by this holder.
func (h *Hold) Context() context.Context {
	if h.ctx != nil {
		return h.ctx
	}
	return h.root.Context()
}

// Token is the fencing token of the hold. A nested hold has that of the outer one.
func (h *Hold) Token() Token { return Token(h.root.Token()) }

// Deadline is when the hold ends unless its session is renewed before; counted from
// the send of the last acknowledged renewal.
func (h *Hold) Deadline() time.Time { return h.root.Deadline() }

// Valid reports whether the holder may still believe. It does no I/O; false is final.
func (h *Hold) Valid() bool {
	return !h.done.Load() && h.root.Valid()
}

// Verify asks a quorum whether the hold is current: nil, [ErrLost], or [ErrReleased]
// after Unlock; [consensus.ErrNoQuorum] when ctx ends first.
func (h *Hold) Verify(ctx context.Context) error { return h.root.Verify(ctx) }

// Guard makes a transaction of package kv depend on this hold.
func (h *Hold) Guard() consensus.Guard { return consensus.Guard(h.root.Guard()) }

// Unlock ends the hold for its holder at once and then frees the lock. It may be
// repeated and never frees a later hold. Unlocking a lost hold is nil: nothing is
// left to free. If ctx ends before the cluster has answered, freeing goes on in
// the background and the error says so. Where holds are nested the lock is free when
// all of them are unlocked; the outer one's Context lasts until then.
func (h *Hold) Unlock(ctx context.Context) error {
	if h.done.CompareAndSwap(false, true) {
		if h.ctx != nil {
			h.end(ErrReleased)
			h.root.Unnest()
		} else {
			h.root.GiveBack()
		}
	}
	return h.root.Release(ctx)
}
