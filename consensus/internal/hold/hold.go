// Package hold is what a lock and a leadership have in common: standing in line,
// the hold as a value whose context ends in time, and giving it back.
package hold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// Causes of the end of a hold's context.
var (
	ErrLost     = errors.New("the hold is lost: its session could not be renewed in time")
	ErrReleased = errors.New("the hold was given back")
)

// Request says what is asked for.
type Request struct {
	machine.Acquire
	Session *session.Session // nil: the node's own
	TTL     time.Duration    // a session of the hold's own; 0: none
}

// Hold is an acquisition that was granted.
type Hold struct {
	space  machine.Space
	name   string
	keeper *session.Keeper
	sess   *session.Session
	own    bool // sess lives and dies with this hold
	ref    machine.HoldRef
	token  machine.Token
	outer  *Hold // the hold in whose context this one was asked for
	ctx    context.Context
	cancel context.CancelCauseFunc
	detach func() bool

	mu    sync.Mutex // guards what follows
	nests int        // nested holds of the same lock that are not given back yet
	given bool       // this hold itself was given back
}

type within struct{}

// Around returns the innermost hold of the same lock in whose context ctx is, or nil.
func Around(ctx context.Context, space machine.Space, name string) *Hold {
	h, _ := ctx.Value(within{}).(*Hold)
	for ; h != nil; h = h.outer {
		if h.space == space && h.name == name && h.Valid() {
			return h
		}
	}
	return nil
}

func lineage(ctx context.Context) (outer *Hold, refs []machine.HoldRef) {
	outer, _ = ctx.Value(within{}).(*Hold)
	for h := outer; h != nil; h = h.outer {
		if h.Valid() {
			refs = append(refs, h.ref)
		}
	}
	return outer, refs
}

// Acquire asks, and stands in line if need be. It returns a hold; or none and the
// answer that refused it; or an error.
//
// After ctx ends it returns at once. What may have become of the request is undone
// in the background: a wait is cancelled, a grant that slipped in is given back.
func Acquire(ctx context.Context, k *session.Keeper, r Request) (*Hold, machine.Result, error) {
	outer, refs := lineage(ctx)
	r.Lineage = refs
	for {
		s, own, err := r.session(ctx, k)
		if err != nil {
			return nil, machine.Result{}, err
		}
		h, res, err := acquire(ctx, k, s, r)
		if h != nil {
			h.own = own
			h.open(ctx, outer)
			return h, res, nil
		}
		if own {
			undo(k, s, func(ctx context.Context) error { return s.Close(ctx) })
		}
		if errors.Is(err, consensus.ErrSessionExpired) && !errors.Is(err, errWaited) && r.Session == nil && ctx.Err() == nil {
			continue // refused before anything happened: the node's session was lost unnoticed, ask under a new one
		}
		return nil, res, err
	}
}

func (r *Request) session(ctx context.Context, k *session.Keeper) (s *session.Session, own bool, err error) {
	switch {
	case r.Session != nil:
		return r.Session, false, nil
	case r.TTL > 0:
		s, err = k.Open(ctx, r.TTL)
		return s, true, err
	}
	s, err = k.Default(ctx)
	return s, false, err
}

// errWaited marks a session lost while its request stood in line: that is told to the caller.
var errWaited = errors.New("lost while waiting")

func acquire(ctx context.Context, k *session.Keeper, s *session.Session, r Request) (*Hold, machine.Result, error) {
	seq := s.Sequence()
	granted, forget := s.Await(seq, r.Space, r.Name)
	defer forget()
	res, err := s.DoAt(ctx, seq, machine.OpAcquire, &r.Acquire)
	if err != nil {
		if !errors.Is(err, consensus.ErrNoQuorum) {
			cancelWait(k, s, r, seq)
		}
		return nil, res, err
	}
	switch res.Code {
	case machine.OK:
	case machine.Queued:
		select {
		case e := <-granted:
			res = machine.Result{Token: e.Token}
		case <-ctx.Done():
			cancelWait(k, s, r, seq)
			return nil, res, fmt.Errorf("%w, in line behind %d others", context.Cause(ctx), max(res.N, 1)-1)
		case <-s.Context().Done():
			return nil, res, fmt.Errorf("%w: %w", errWaited, context.Cause(s.Context()))
		}
	default:
		return nil, res, nil
	}
	if !s.Valid() { // an overdue session may still be granted: it is for its owner to look (protocol 23)
		return nil, res, fmt.Errorf("%w: %w", errWaited, context.Cause(s.Context()))
	}
	return &Hold{
		space: r.Space, name: r.Name, keeper: k, sess: s, token: res.Token,
		ref: machine.HoldRef{Session: machine.SessionID(s.ID()), Seq: seq},
	}, res, nil
}

func (h *Hold) open(ctx context.Context, outer *Hold) {
	h.outer = outer
	base := context.WithValue(context.WithoutCancel(ctx), within{}, h)
	h.ctx, h.cancel = context.WithCancelCause(base)
	h.detach = context.AfterFunc(h.sess.Context(), func() {
		cause := context.Cause(h.sess.Context())
		h.cancel(fmt.Errorf("%w: %w", ErrLost, cause))
	})
}

// cancelWait takes a request out of its line, whatever became of it, in the
// background: it is sent again until it is answered or the session has ended.
func cancelWait(k *session.Keeper, s *session.Session, r Request, seq uint64) {
	undo(k, s, func(ctx context.Context) error {
		_, err := s.Do(ctx, machine.OpCancelWait, &machine.CancelWait{Space: r.Space, Name: r.Name, Target: seq})
		return err
	})
}

// undo runs fn in the background, with as much time as the session can live at
// most: after that the cluster has ended whatever hung on it.
func undo(k *session.Keeper, s *session.Session, fn func(context.Context) error) {
	k.Go(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, 2*s.TTL())
		defer cancel()
		_ = fn(ctx) // nobody is left who could be told; what is not undone ends with the session
	})
}

// Context ends before anyone else can be granted the name, or with the hold.
func (h *Hold) Context() context.Context { return h.ctx }

// Token is the fencing token.
func (h *Hold) Token() machine.Token { return h.token }

// Ref names the hold (protocol: session and sequence, a token alone is no identity).
func (h *Hold) Ref() machine.HoldRef { return h.ref }

// Session is the session that the hold hangs on.
func (h *Hold) Session() *session.Session { return h.sess }

// Deadline is when belief ends unless the session is renewed before.
func (h *Hold) Deadline() time.Time { return h.sess.Deadline() }

// Valid reports whether the holder may believe. It does no I/O; false is final.
func (h *Hold) Valid() bool { return h.ctx.Err() == nil && h.sess.Valid() }

// Guard names the hold inside a transaction.
func (h *Hold) Guard() machine.Guard {
	return machine.Guard{Space: h.space, Name: h.name, Hold: h.ref, Token: h.token}
}

// Verify asks a quorum whether the hold is current.
func (h *Hold) Verify(ctx context.Context) error {
	if !h.Valid() {
		return fmt.Errorf("verify %q: %w", h.name, context.Cause(h.ctx))
	}
	res, err := h.keeper.Query(ctx, &machine.Query{
		Kind: machine.QueryWait, Space: h.space, Name: h.name, Session: h.ref.Session, Seq: h.ref.Seq,
	})
	if err != nil {
		return fmt.Errorf("verify %q: %w", h.name, err)
	}
	if res.Code != machine.OK || res.Token != h.token {
		h.cancel(ErrLost)
		return fmt.Errorf("verify %q: %w", h.name, ErrLost)
	}
	return nil
}

// Nest adds a nested hold; it reports false if the hold has ended meanwhile.
func (h *Hold) Nest() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given || !h.Valid() {
		return false
	}
	h.nests++
	return true
}

// Unnest gives a nested hold back.
func (h *Hold) Unnest(ctx context.Context) error {
	h.mu.Lock()
	h.nests--
	last := h.given && h.nests == 0
	h.mu.Unlock()
	if last {
		return h.send(ctx)
	}
	return nil
}

// Release ends the hold for its holder, then frees the name. It may be repeated:
// it names this hold and can never free a later one. If ctx ends before the cluster
// has answered, freeing goes on in the background. Releasing a lost hold is nil.
func (h *Hold) Release(ctx context.Context) error {
	h.mu.Lock()
	h.given = true
	nested := h.nests > 0
	h.mu.Unlock()
	if nested {
		return nil // the last nested one frees it
	}
	return h.send(ctx)
}

func (h *Hold) send(ctx context.Context) error {
	h.detach()
	h.cancel(ErrReleased)
	if h.own {
		return h.finish(ctx, h.sess.Close)
	}
	return h.finish(ctx, func(ctx context.Context) error {
		res, err := h.sess.Do(ctx, machine.OpRelease, &machine.Release{Space: h.space, Name: h.name, Target: h.ref.Seq, Token: h.token})
		if err == nil && res.Code != machine.OK && res.Code != machine.NotFound {
			err = session.Refused("release", res)
		}
		return err
	})
}

func (h *Hold) finish(ctx context.Context, free func(context.Context) error) error {
	err := free(ctx)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, consensus.ErrSessionExpired), errors.Is(err, consensus.ErrClosed):
		return nil // nothing is left to free
	}
	undo(h.keeper, h.sess, free)
	return fmt.Errorf("release %q (token %d): %w", h.name, h.token, err)
}

// Run calls fn with a context that ends with ctx and with the hold, and gives the
// hold back after fn has returned, also by a panic.
func (h *Hold) Run(ctx context.Context, fn func(context.Context) error) (err error) {
	inner, cancel := context.WithCancelCause(context.WithValue(ctx, within{}, h))
	defer cancel(nil)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	defer stop()
	defer func() {
		late, done := context.WithTimeout(context.WithoutCancel(ctx), h.sess.TTL())
		defer done()
		err = errors.Join(err, h.Release(late))
	}()
	return fn(inner)
}
