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
	detach func()

	mu    sync.Mutex // guards what follows
	nests int        // nested holds of the same lock that are not given back yet
	given bool       // this hold itself was given back
	freed bool       // the cluster has freed it
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
	if err := r.check(); err != nil {
		return nil, machine.Result{}, err
	}
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
			s.Insist(s.Close)
		}
		if errors.Is(err, consensus.ErrSessionExpired) && !errors.Is(err, errWaited) && r.Session == nil && ctx.Err() == nil {
			// The node's session was lost unnoticed. If some copy of the request was
			// applied before, the end of the session has undone it: ask under a new one.
			continue
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
	if err := s.Err(); err != nil { // nothing is sent
		return nil, machine.Result{}, err
	}
	seq := s.Sequence()
	granted, forget := s.Await(seq, r.Space, r.Name)
	defer forget()
	res, err := s.DoAt(ctx, seq, machine.OpAcquire, &r.Acquire)
	if err != nil {
		if !errors.Is(err, consensus.ErrNoQuorum) && !errors.Is(err, consensus.ErrOverloaded) {
			cancelWait(s, r, seq)
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
			cancelWait(s, r, seq)
			return nil, res, fmt.Errorf("%w, in line behind %d others", context.Cause(ctx), max(res.N, 1)-1)
		case <-s.Context().Done():
			cancelWait(s, r, seq)
			return nil, res, fmt.Errorf("%w: %w", errWaited, context.Cause(s.Context()))
		}
	default:
		return nil, res, nil
	}
	if err := s.Err(); err != nil { // an overdue session may still be granted: it is for its owner to look (protocol 23)
		cancelWait(s, r, seq)
		return nil, res, fmt.Errorf("%w: %w", errWaited, err)
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
	h.detach = h.sess.OnEnd(func(cause error) { h.cancel(fmt.Errorf("%w: %w", ErrLost, cause)) })
}

// cancelWait takes a request out of its line, whatever became of it, in the
// background: it is sent again until it is answered or the session has ended.
func cancelWait(s *session.Session, r Request, seq uint64) {
	s.Insist(func(ctx context.Context) error {
		_, err := s.Do(ctx, machine.OpCancelWait, &machine.CancelWait{Space: r.Space, Name: r.Name, Target: seq})
		return err
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
func (h *Hold) Valid() bool { return h.Err() == nil }

// Err returns why the hold is not valid any more, or nil.
func (h *Hold) Err() error {
	if cause := context.Cause(h.ctx); cause != nil {
		return cause
	}
	if err := h.sess.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return nil
}

// Guard names the hold inside a transaction. That of a hold that is not valid any
// more never holds, even if the cluster has not ended it yet: false is final.
func (h *Hold) Guard() machine.Guard {
	g := machine.Guard{Space: h.space, Name: h.name, Hold: h.ref}
	if h.Valid() {
		g.Token = h.token
	}
	return g
}

// Verify asks a quorum whether the hold is current.
func (h *Hold) Verify(ctx context.Context) error {
	if err := h.Err(); err != nil {
		return fmt.Errorf("verify %q: %w", h.name, err)
	}
	res, err := h.keeper.Query(ctx, &machine.Query{
		Kind: machine.QueryWait, Space: h.space, Name: h.name, Session: h.ref.Session, Seq: h.ref.Seq,
	})
	if err != nil {
		return fmt.Errorf("verify %q: %w", h.name, err)
	}
	if res.Code != machine.OK || res.Token != h.token {
		h.detach()
		h.cancel(ErrLost)
		return fmt.Errorf("verify %q: %w", h.name, ErrLost)
	}
	return nil
}

// Nest adds a nested hold; it reports false if the hold has ended meanwhile.
func (h *Hold) Nest() bool {
	valid := h.Valid()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !valid || h.given && h.nests == 0 {
		return false
	}
	h.nests++
	return true
}

// Unnest gives a nested hold back. What has to be freed then, Release frees.
func (h *Hold) Unnest() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nests--
}

// GiveBack marks the hold itself as given back; nested ones go on.
func (h *Hold) GiveBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given = true
}

// Release ends the hold for its holder and frees the name, once the hold itself and
// all that are nested in it are given back. It may be repeated: it names this hold
// and can never free a later one. If ctx ends before the cluster has answered,
// freeing goes on in the background. Releasing a lost hold is nil.
func (h *Hold) Release(ctx context.Context) error {
	h.mu.Lock()
	over := h.given && h.nests == 0 && !h.freed
	h.mu.Unlock()
	if !over {
		return nil
	}
	h.detach()
	h.cancel(ErrReleased)
	err := h.free(ctx)
	if err == nil {
		return nil
	}
	h.sess.Insist(h.free)
	return fmt.Errorf("release %q (token %d), which goes on in the background: %w", h.name, h.token, err)
}

func (h *Hold) free(ctx context.Context) (err error) {
	if h.own {
		err = h.sess.Close(ctx)
	} else {
		var res machine.Result
		res, err = h.sess.Do(ctx, machine.OpRelease, &machine.Release{Space: h.space, Name: h.name, Target: h.ref.Seq, Token: h.token})
		if err == nil && res.Code != machine.OK && res.Code != machine.NotFound {
			err = session.Refused("release", res)
		}
	}
	if errors.Is(err, consensus.ErrSessionExpired) || errors.Is(err, consensus.ErrClosed) {
		err = nil // nothing is left to free
	}
	if err == nil {
		h.mu.Lock()
		h.freed = true
		h.mu.Unlock()
	}
	return err
}

// Run calls fn with a context that ends with ctx and with the hold, and calls
// release after fn has returned, also by a panic. The context that release is given
// ends with ctx, but not before a second has passed: who is told to stop still
// gives back what it has.
func (h *Hold) Run(ctx context.Context, fn, release func(context.Context) error) (err error) {
	defer h.sess.Running()()
	inner, cancel := context.WithCancelCause(context.WithValue(ctx, within{}, h))
	defer cancel(nil)
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	defer stop()
	defer func() {
		late, done := outlast(ctx, time.Second)
		defer done()
		err = errors.Join(err, release(late))
	}()
	return fn(inner)
}

// outlast returns a context that ends when ctx has ended and d has passed.
func outlast(ctx context.Context, d time.Duration) (context.Context, func()) {
	late, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	least := time.Now().Add(d)
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(time.Until(least), func() { cancel(context.Cause(ctx)) })
	})
	return late, func() { stop(); cancel(nil) }
}

// Limits of a Request.
const (
	maxLabel = 1 << 10
	maxValue = 64 << 10
)

// check refuses what the cluster would refuse, before anything is sent.
func (r *Request) check() error {
	switch {
	case r.TTL < 0:
		return fmt.Errorf("%w: a TTL of %v", consensus.ErrInvalid, r.TTL)
	case len(r.Label) > maxLabel:
		return fmt.Errorf("%w: an owner's label has at most %d bytes, this one %d", consensus.ErrInvalid, maxLabel, len(r.Label))
	}
	return CheckValue(r.Value)
}

// CheckValue refuses a leader's value that is too large.
func CheckValue(value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%w: a leader's value has at most %d bytes, this one %d", consensus.ErrInvalid, maxValue, len(value))
	}
	return nil
}
