package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/consensus/internal/hold"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// Token is a fencing token. The tokens of one lock name are consecutive (n, n+1,
// ...) and never reused; each change of holder takes the next. It fits in an int64.
type Token uint64

// Errors to test for.
var (
	ErrLocked   = errors.New("the lock is held by another")
	ErrDeadlock = errors.New("waiting would never end")
	ErrLost     = hold.ErrLost
	ErrReleased = hold.ErrReleased
)

// Owner is who holds or waits.
type Owner struct {
	Node    string
	Label   string // see WithOwner
	Session session.ID
	Token   Token     // 0 while waiting
	Since   time.Time // by the leader's wall clock
}

// Info is a lock as it stands.
type Info struct {
	Name             string
	Holders, Waiters []Owner // waiters in the order in which they will be served
}

// LockedError says who has a lock; Holder is zero while only a lock delay keeps it
// taken. It Is [ErrLocked].
type LockedError struct {
	Lock    string
	Holder  Owner
	Waiters int
}

// Error says who holds the lock, since when, and how many wait.
func (e *LockedError) Error() string {
	if e.Holder.Node == "" {
		return fmt.Sprintf("lock %q is kept taken after the expiry of its last holder, %d waiting: use Lock to stand in line", e.Lock, e.Waiters)
	}
	by := e.Holder.Node
	if e.Holder.Label != "" {
		by += " (" + e.Holder.Label + ")"
	}
	return fmt.Sprintf("lock %q is held by %s since %s with token %d, %d waiting: use Lock to stand in line",
		e.Lock, by, e.Holder.Since.Format(time.RFC3339), e.Holder.Token, e.Waiters)
}

// Is makes the error an ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Edge is one step of a circle of waiting: Waiter stands in line for Lock, which Holder has.
type Edge struct {
	Waiter, Holder Owner
	Lock           string
}

// DeadlockError names the circle that a wait would close. It Is [ErrDeadlock].
type DeadlockError struct{ Cycle []Edge }

// Error walks the circle.
func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString("waiting would never end:")
	for _, s := range e.Cycle {
		fmt.Fprintf(&b, " %s waits for %q, held by %s;", s.Waiter.Node, s.Lock, s.Holder.Node)
	}
	b.WriteString(" take the locks in one order, or use Reentrant for one's own")
	return b.String()
}

// Is makes the error an ErrDeadlock.
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }

// Mutex is a lock of one holder at a time, known to the whole cluster by its name.
type Mutex struct {
	keeper *session.Keeper
	name   string
}

// New returns the mutex of that name: UTF-8 without control characters, 1 to 256
// bytes. Nothing is sent until it is used.
func New(k *session.Keeper, name string) *Mutex { return &Mutex{keeper: k, name: name} }

// Option is an option of Lock, TryLock and Do.
type Option func(*request)

type request struct {
	hold.Request
	reentrant bool
}

// WithTTL gives the hold a session of its own with this TTL, which is long enough
// to outlive a change of leader (3 s at LAN pace), else [consensus.ErrInvalid].
func WithTTL(d time.Duration) Option { return func(r *request) { r.TTL = d } }

// WithSession hangs the hold on s.
func WithSession(s *session.Session) Option { return func(r *request) { r.Session = s } }

// WithOwner sets the label that everyone sees who is blocked by this hold: 1 KiB at most.
func WithOwner(label string) Option { return func(r *request) { r.Label = label } }

// WithLockDelay keeps the name taken for d after the hold's session has expired
// (not after an Unlock): time for what the holder sent before to arrive.
func WithLockDelay(d time.Duration) Option {
	return func(r *request) { r.LockDelay = uint64(max(d, 0)) }
}

// Reentrant lets Lock nest under the context of a hold of the same lock: same
// token, and the name is free when all have been unlocked. Without it that is [ErrDeadlock].
func Reentrant() Option { return func(r *request) { r.reentrant = true } }

// Lock waits in line until the lock is granted. ctx bounds the waiting only: the
// hold's context keeps the values of ctx, not its end ([Mutex.Do] is the form
// bound to ctx). When ctx ends Lock returns at once with its cause, and no hold
// remains: what may have become of the request is undone in the background, so Retry
// of a [consensus.UnknownError] never brings a hold. Without a quorum it waits until
// ctx ends.
// Errors: [ErrDeadlock], [consensus.ErrNoQuorum], [consensus.ErrUnknown],
// [consensus.ErrSessionExpired] if the session was lost while waiting,
// [consensus.ErrOverloaded] beyond 10 000 waiters, [consensus.ErrInvalid].
func (m *Mutex) Lock(ctx context.Context, opts ...Option) (*Hold, error) {
	return m.lock(ctx, false, opts)
}

// TryLock takes the lock if it is free, and returns a [*LockedError] if it is not.
func (m *Mutex) TryLock(ctx context.Context, opts ...Option) (*Hold, error) {
	return m.lock(ctx, true, opts)
}

// Do calls fn under the lock. The ctx of fn ends with ctx, and before anyone else
// can be granted the lock, which is unlocked only after fn has returned; when ctx
// has ended, for a second at most: then that goes on in the background, and its
// error is joined to that of fn.
func (m *Mutex) Do(ctx context.Context, fn func(context.Context, *Hold) error, opts ...Option) error {
	h, err := m.Lock(ctx, opts...)
	if err != nil {
		return err
	}
	return h.root.Run(ctx, func(ctx context.Context) error { return fn(ctx, h) }, h.Unlock)
}

func (m *Mutex) lock(ctx context.Context, try bool, opts []Option) (*Hold, error) {
	if err := session.CheckName("lock", m.name); err != nil {
		return nil, err
	}
	var r request
	for _, o := range opts {
		o(&r)
	}
	r.Space, r.Name, r.Try = machine.SpaceLock, m.name, try
	if r.reentrant {
		if outer := hold.Around(ctx, r.Space, r.Name); outer != nil && outer.Nest() {
			return nest(ctx, outer), nil
		}
	}
	h, res, err := hold.Acquire(ctx, m.keeper, r.Request)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", m.name, err)
	}
	if h == nil {
		return nil, m.refused(res)
	}
	return &Hold{root: h}, nil
}

func (m *Mutex) refused(res machine.Result) error {
	switch res.Code {
	case machine.Locked:
		var info machine.LockInfo
		if err := machine.Decode(res.Body, &info); err != nil || len(info.Holders) == 0 { // only a delay after an expiry is left
			return &LockedError{Lock: m.name, Waiters: int(res.N)}
		}
		return &LockedError{Lock: m.name, Holder: owner(info.Holders[0]), Waiters: int(res.N)}
	case machine.Deadlock:
		var c machine.Cycle
		_ = machine.Decode(res.Body, &c) // a cycle that cannot be read is still a deadlock
		e := &DeadlockError{}
		for _, s := range c.Edges {
			e.Cycle = append(e.Cycle, Edge{Waiter: owner(s.Waiter), Holder: owner(s.Holder), Lock: s.Lock})
		}
		return e
	}
	return session.Refused(fmt.Sprintf("lock %q", m.name), res)
}

// Info tells who holds the lock and who waits. A name that was never used is free.
func (m *Mutex) Info(ctx context.Context) (Info, error) {
	info := Info{Name: m.name}
	if err := session.CheckName("lock", m.name); err != nil {
		return info, err
	}
	res, err := m.keeper.Query(ctx, &machine.Query{Kind: machine.QueryLock, Space: machine.SpaceLock, Name: m.name})
	if err != nil {
		return info, fmt.Errorf("look at lock %q: %w", m.name, err)
	}
	switch res.Code {
	case machine.OK:
	case machine.NotFound:
		return info, nil
	default:
		return info, session.Refused(fmt.Sprintf("look at lock %q", m.name), res)
	}
	var l machine.LockInfo
	if err := machine.Decode(res.Body, &l); err != nil {
		return info, fmt.Errorf("look at lock %q: %w", m.name, err)
	}
	for _, o := range l.Holders {
		info.Holders = append(info.Holders, owner(o))
	}
	for _, o := range l.Waiters {
		info.Waiters = append(info.Waiters, owner(o))
	}
	return info, nil
}

func owner(o machine.Owner) Owner {
	return Owner{Node: o.Node, Label: o.Label, Session: session.ID(o.Hold.Session), Token: Token(o.Token), Since: time.Unix(0, o.Since)}
}

// Hold is a lock that was granted.
type Hold struct {
	root *hold.Hold
	done atomic.Bool // Unlock was called

	// Of a nested hold only; nil in others.
	ctx context.Context
	end context.CancelCauseFunc
}
