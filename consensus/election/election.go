// Package election has leaderships of the application: one node at a time leads,
// with an epoch that grows by one with each leadership of a name.
//
// An election is a lock whose holder announces a value. What package lock says of
// order, belief, deaths and lost quorums holds here word for word; the epoch is
// its token, and resources should refuse smaller ones.
package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/internal/hold"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
)

// ErrNoLeader means that nobody leads at the moment.
var ErrNoLeader = errors.New("nobody leads")

// Election is known to the whole cluster by its name.
type Election struct {
	keeper *session.Keeper
	name   string
}

// New returns the election of that name: UTF-8 without control characters, 1 to
// 256 bytes. Nothing is sent until it is used.
func New(k *session.Keeper, name string) *Election { return &Election{keeper: k, name: name} }

// Leader is who leads.
type Leader struct {
	Node   string
	Value  []byte     // what it announced
	Epoch  lock.Token // grows with every leadership
	Vacant bool       // nobody leads; Epoch is that of the last who did
}

// Option is an option of Campaign and Run.
type Option func(*hold.Request)

// WithTTL gives the leadership a session of its own with this TTL.
func WithTTL(d time.Duration) Option { return func(r *hold.Request) { r.TTL = d } }

// WithSession hangs the leadership on s.
func WithSession(s *session.Session) Option { return func(r *hold.Request) { r.Session = s } }

// WithPreference puts the candidate before those with a lower score; among equals
// the first come is first.
func WithPreference(score uint32) Option { return func(r *hold.Request) { r.Score = uint64(score) } }

// Campaign stands in line until this node leads. ctx bounds the waiting only.
// value is what others see as the leader's: 64 KiB at most. Errors as [lock.Mutex.Lock].
func (e *Election) Campaign(ctx context.Context, value []byte, opts ...Option) (*Leadership, error) {
	r, err := e.request(value, opts)
	if err != nil {
		return nil, err
	}
	h, res, err := hold.Acquire(ctx, e.keeper, r)
	if err != nil {
		return nil, fmt.Errorf("campaign for %q: %w", e.name, err)
	}
	if h == nil {
		if res.Code == machine.Deadlock {
			return nil, fmt.Errorf("campaign for %q: %w", e.name, lock.ErrDeadlock)
		}
		return nil, session.Refused(fmt.Sprintf("campaign for %q", e.name), res)
	}
	return &Leadership{hold: h, name: e.name}, nil
}

func (e *Election) request(value []byte, opts []Option) (r hold.Request, err error) {
	for _, o := range opts {
		o(&r)
	}
	r.Space, r.Name, r.Value = machine.SpaceElection, e.name, value
	return r, session.CheckName("election", e.name)
}

// Run campaigns and calls fn while this node leads, again after each loss, until
// ctx ends, fn returns by itself, or the session given by [WithSession] has ended.
// The ctx of fn ends before anyone else can lead; the seat is given up only after fn
// has returned, as by [lock.Mutex.Do]. An error of fn is returned, and so is a panic,
// with its stack, as an error.
func (e *Election) Run(ctx context.Context, fn func(context.Context, *Leadership) error, opts ...Option) error {
	r, err := e.request(nil, opts)
	if err != nil {
		return err
	}
	again := func() bool { return ctx.Err() == nil && (r.Session == nil || r.Session.Valid()) }
	for {
		l, err := e.Campaign(ctx, nil, opts...)
		if errors.Is(err, consensus.ErrSessionExpired) && again() {
			continue // lost in line: stand in line again
		}
		if err != nil {
			return err
		}
		err = l.hold.Run(ctx, func(ctx context.Context) error { return e.lead(ctx, l, fn) }, l.Resign)
		if !errors.Is(context.Cause(l.Context()), lock.ErrLost) || !again() {
			return err
		}
	}
}

// lead calls fn. A panic must not take the process down on a goroutine that the
// user may have made for Run alone.
func (e *Election) lead(ctx context.Context, l *Leadership, fn func(context.Context, *Leadership) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("lead %q: panic: %v\n%s", e.name, p, debug.Stack())
		}
	}()
	return fn(ctx, l)
}

// Leader tells who leads, by a linearizable read. [ErrNoLeader] if nobody does.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	l, _, err := e.leader(ctx)
	if err == nil && l.Vacant {
		err = fmt.Errorf("election %q: %w", e.name, ErrNoLeader)
	}
	return l, err
}

func (e *Election) leader(ctx context.Context) (Leader, machine.Rev, error) {
	info, rev, err := e.info(ctx)
	if err != nil {
		return Leader{}, 0, err
	}
	if len(info.Holders) == 0 {
		return Leader{Vacant: true, Epoch: lock.Token(info.Last)}, rev, nil
	}
	h := info.Holders[0]
	return Leader{Node: h.Node, Value: h.Value, Epoch: lock.Token(h.Token)}, rev, nil
}

func (e *Election) info(ctx context.Context) (info machine.LockInfo, rev machine.Rev, err error) {
	if err := session.CheckName("election", e.name); err != nil {
		return info, 0, err
	}
	res, err := e.keeper.Query(ctx, &machine.Query{Kind: machine.QueryLock, Space: machine.SpaceElection, Name: e.name})
	switch {
	case err != nil || res.Code == machine.NotFound: // a name never used is vacant
	case res.Code == machine.OK:
		err = machine.Decode(res.Body, &info)
	default:
		err = session.Refused("refused", res)
	}
	if err != nil {
		return info, 0, fmt.Errorf("look at election %q: %w", e.name, err)
	}
	return info, res.Rev, nil
}

// Candidates lists those in line, the leader first.
func (e *Election) Candidates(ctx context.Context) ([]lock.Owner, error) {
	info, _, err := e.info(ctx)
	var all []lock.Owner
	for _, o := range append(info.Holders, info.Waiters...) {
		all = append(all, lock.Owner{Node: o.Node, Label: o.Label, Session: session.ID(o.Hold.Session), Token: lock.Token(o.Token), Since: time.Unix(0, o.Since)})
	}
	return all, err
}

// Observe yields the present leader and then each change, in order and without
// gaps: a new leader, a new value, a vacancy. The last pair carries the reason why
// it ended, which is the cause of ctx unless the history was compacted meanwhile.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		now, rev, err := e.leader(ctx)
		if err != nil || !yield(now, nil) {
			if err != nil {
				yield(Leader{}, err)
			}
			return
		}
		for u, err := range e.keeper.Watch(ctx, machine.TopicElection, e.name, rev) {
			if err != nil {
				yield(Leader{}, fmt.Errorf("observe election %q: %w", e.name, err))
				return
			}
			var l machine.LeaderInfo
			if u.Synced {
				continue
			}
			if err := machine.Decode(u.Event.Body, &l); err != nil {
				yield(Leader{}, fmt.Errorf("observe election %q: %w", e.name, err))
				return
			}
			if !yield(Leader{Node: l.Node, Value: l.Value, Epoch: lock.Token(l.Epoch), Vacant: l.Vacant}, nil) {
				return
			}
		}
	}
}

// Leadership is a campaign that was won.
type Leadership struct {
	hold *hold.Hold
	name string
}

// Context ends before anyone else can lead. Its cause says why.
func (l *Leadership) Context() context.Context { return l.hold.Context() }

// Epoch is the leadership's fencing token.
func (l *Leadership) Epoch() lock.Token { return lock.Token(l.hold.Token()) }

// IsLeader reports whether this node may still believe that it leads. No I/O; false is final.
func (l *Leadership) IsLeader() bool { return l.hold.Valid() }

// Deadline is when the leadership ends unless its session is renewed before.
func (l *Leadership) Deadline() time.Time { return l.hold.Deadline() }

// Confirm asks a quorum whether the leadership is current: nil or [lock.ErrLost].
func (l *Leadership) Confirm(ctx context.Context) error { return l.hold.Verify(ctx) }

// Guard makes a transaction of package kv depend on this leadership.
func (l *Leadership) Guard() consensus.Guard { return consensus.Guard(l.hold.Guard()) }

// Announce changes the leader's value, 64 KiB at most, for all who observe.
// Errors: [lock.ErrLost], [consensus.ErrInvalid], [consensus.ErrNoQuorum] and
// [consensus.ErrUnknown] when ctx ends first.
func (l *Leadership) Announce(ctx context.Context, value []byte) error {
	if err := hold.CheckValue(value); err != nil {
		return fmt.Errorf("announce to election %q: %w", l.name, err)
	}
	if err := l.hold.Err(); err != nil {
		return fmt.Errorf("announce to election %q: %w", l.name, err)
	}
	res, err := l.hold.Session().Do(ctx, machine.OpAnnounce, &machine.Announce{
		Name: l.name, Target: l.hold.Ref().Seq, Token: l.hold.Token(), Value: value,
	})
	switch {
	case err != nil:
		return fmt.Errorf("announce to election %q: %w", l.name, err)
	case res.Code == machine.StaleToken || res.Code == machine.NotFound:
		return fmt.Errorf("announce to election %q: %w", l.name, lock.ErrLost)
	case res.Code != machine.OK:
		return session.Refused(fmt.Sprintf("announce to election %q", l.name), res)
	}
	return nil
}

// Resign ends belief at once, whatever its ctx, and then gives up the seat. It may be repeated until nil.
func (l *Leadership) Resign(ctx context.Context) error {
	l.hold.GiveBack()
	return l.hold.Release(ctx)
}
