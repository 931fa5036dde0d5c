package session

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// Cluster is what sessions need of the consensus room: *consensus.Client is one.
type Cluster interface {
	Do(ctx context.Context, cmd machine.Cmd) (machine.Result, error)
	Query(ctx context.Context, q *machine.Query) (machine.Result, error)
	Watch(ctx context.Context, topic machine.Topic, name string, from machine.Rev) iter.Seq2[consensus.Update, error]
	Route(id machine.SessionID, fn func(machine.Event)) (stop func())
}

// Keeper holds a node's sessions and renews them.
type Keeper struct {
	Cluster
	node   string
	boot   uint64
	origin uint64        // of the node's directory; 0 without one
	ttl    time.Duration // of the default session
	least  time.Duration // no session is shorter
	log    *slog.Logger
	base   time.Time // zero of the owner's clock

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	wake chan struct{}  // 1: a session was opened, or a round has ended
	work sync.WaitGroup // the renewal loop and what runs in the background

	mu       sync.Mutex // guards what follows; no method of a Session is called under it
	open     map[machine.SessionID]*Session
	def      *Session
	opening  chan struct{} // closed when the one who opens the default session is done
	leaving  bool          // nothing is opened any more
	insisted int           // see Session.Insist
}

// NewKeeper starts the keeper of a node. origin names its data directory, 0 if there
// is none: what an earlier start on it held ends when this one opens its default
// session. ttl is that of the default session, least
// the shortest that [Keeper.Open] accepts. Close ends it.
func NewKeeper(c Cluster, node string, boot, origin uint64, ttl, least time.Duration, log *slog.Logger) *Keeper {
	k := &Keeper{
		Cluster: c, node: node, boot: boot, origin: origin, ttl: ttl, least: least, log: log, base: time.Now(),
		wake: make(chan struct{}, 1), open: map[machine.SessionID]*Session{},
	}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	k.work.Go(k.renew)
	return k
}

// now is the owner's clock: time since the keeper started, suspend included.
func (k *Keeper) now() time.Duration { return time.Since(k.base) + suspended() }

// Default returns the node's own session, which is opened by its first use and
// opened anew after a loss. Errors: [consensus.ErrNoQuorum] when ctx ends first,
// [consensus.ErrClosed] once the node leaves or is closed.
func (k *Keeper) Default(ctx context.Context) (*Session, error) {
	for {
		k.mu.Lock()
		s, wait := k.def, k.opening
		if s == nil && wait == nil {
			k.opening = make(chan struct{})
		}
		k.mu.Unlock()
		switch {
		case s != nil && s.Valid():
			return s, nil
		case s != nil:
			k.forget(s)
		case wait == nil:
			return k.openDefault(ctx)
		default:
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, k.unopened(ctx, consensus.ErrUnknown)
			}
		}
	}
}

// openDefault is run by one caller at a time; others wait for opening.
func (k *Keeper) openDefault(ctx context.Context) (*Session, error) {
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		close(k.opening)
		k.opening = nil
	}()
	return k.start(ctx, k.ttl, true)
}

// Open opens a session of its own with the given TTL. Errors: [consensus.ErrInvalid]
// for a TTL too short to outlive a change of leader, else as Default.
func (k *Keeper) Open(ctx context.Context, ttl time.Duration) (*Session, error) {
	if ttl < k.least {
		return nil, fmt.Errorf("open a session of %s: %w: a TTL of %v, at least %v outlive a change of leader", k.node, consensus.ErrInvalid, ttl, k.least)
	}
	return k.start(ctx, ttl, false)
}

func (k *Keeper) start(ctx context.Context, ttl time.Duration, def bool) (*Session, error) {
	for {
		if err := k.over(); err != nil {
			return nil, err
		}
		s, err := k.request(ctx, ttl, def)
		if err != nil {
			return nil, k.unopened(ctx, err)
		}
		fresh, err := k.affirm(ctx, s)
		if err != nil {
			return nil, k.unopened(ctx, err)
		}
		if fresh {
			return s, k.admit(s, def)
		}
	}
}

// over returns why nothing can be opened any more.
func (k *Keeper) over() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leaving || k.ctx.Err() != nil {
		return fmt.Errorf("open a session of %s: %w", k.node, consensus.ErrClosed)
	}
	return nil
}

// unopened is the error of whoever wanted a session. What it is wanted for was not
// sent: however the opening itself ended, nothing has happened. A session that was
// opened all the same has nothing hanging on it, and expires.
func (k *Keeper) unopened(ctx context.Context, err error) error {
	if errors.Is(err, consensus.ErrUnknown) {
		err = consensus.ErrClosed
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", consensus.ErrNoQuorum, context.Cause(ctx))
		}
	}
	return fmt.Errorf("open a session of %s: %w", k.node, err)
}

func (k *Keeper) request(ctx context.Context, ttl time.Duration, def bool) (*Session, error) {
	var nonce [8]byte
	rand.Read(nonce[:])
	sent := k.now()
	res, err := k.Do(ctx, machine.Cmd{Op: machine.OpOpenSession, Body: machine.Encode(&machine.OpenSession{
		TTL: uint64(ttl), Node: k.node, Boot: k.boot, Nonce: binary.BigEndian.Uint64(nonce[:]), Default: def, Origin: k.origin,
	})})
	switch {
	case err != nil:
		return nil, err
	case res.Code == machine.Stale:
		return nil, fmt.Errorf("%w: a later start of this node has taken its place", consensus.ErrClosed)
	case res.Code != machine.OK:
		return nil, Refused("refused", res)
	}
	return newSession(k, machine.SessionID(res.N), ttl, sent), nil
}

// affirm renews a session whose opening was answered so late that little or nothing
// is left of the owner's lease, which counts from before the command was sent.
// Nobody believes in the session yet, so here a renewal after the end is no breach.
// fresh is false if the cluster has ended it meanwhile.
func (k *Keeper) affirm(ctx context.Context, s *Session) (fresh bool, err error) {
	for k.now()-s.sent > s.life()/2 {
		sent := k.now()
		states, err := k.keepAlive(ctx, s)
		if err != nil || !states[0].Open {
			return false, err
		}
		s.sent = sent
	}
	return true, nil
}

func (k *Keeper) admit(s *Session, def bool) error {
	k.mu.Lock()
	over := k.leaving || k.ctx.Err() != nil
	if !over {
		k.open[s.id] = s
		if def {
			k.def = s
		}
	}
	k.mu.Unlock()
	if over {
		s.end(consensus.ErrClosed)
		return fmt.Errorf("open a session of %s: %w", k.node, consensus.ErrClosed)
	}
	s.routed(k.Route(s.id, s.event))
	k.look()
	return nil
}

func (k *Keeper) forget(s *Session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.open, s.id)
	if k.def == s {
		k.def = nil
	}
}

func (k *Keeper) all() []*Session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.open))
}

// look makes the loop look at the sessions now.
func (k *Keeper) look() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// renew is the loop that keeps the sessions: it renews those that are due in one
// command and ends those whose time has passed.
func (k *Keeper) renew() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-timer.C:
		}
		due, next := k.round()
		if len(due) > 0 {
			k.work.Go(func() { k.renewAll(due) })
		}
		timer.Reset(next)
	}
}

// round ends what has passed and returns what is to be renewed now, and when to
// look again. A session is in one renewal at a time, so a renewal that is not
// answered holds up nobody but its own sessions.
func (k *Keeper) round() (due []*Session, next time.Duration) {
	next = time.Minute
	now := k.now()
	var early []*Session
	for _, s := range k.all() {
		at, along, ends := s.plan()
		switch {
		case now >= ends:
			s.end(consensus.ErrSessionExpired)
			continue
		case now >= at:
			due = append(due, s)
		case now >= along:
			early = append(early, s)
		}
		if now < at {
			next = min(next, at-now)
		}
		next = min(next, ends-now)
	}
	if len(due) > 0 { // those that are nearly due come along: phases meet, and one command serves all
		due = append(due, early...)
	}
	due = slices.DeleteFunc(due, func(s *Session) bool { return !s.begin(now) })
	slices.SortFunc(due, func(a, b *Session) int { return cmp.Compare(a.id, b.id) })
	return due, max(next, time.Millisecond)
}

// renewAll is one round. The new deadlines count from before the command is sent. A
// round that is not answered within the shortest interval is given up: the next one
// has a later send time.
func (k *Keeper) renewAll(due []*Session) {
	patience := 2 * time.Second
	for _, s := range due {
		patience = min(patience, s.interval())
	}
	ctx, cancel := context.WithTimeout(k.ctx, max(patience, 100*time.Millisecond))
	defer cancel()
	sent := k.now()
	states, err := k.keepAlive(ctx, due...)
	if err != nil && errors.Is(err, errMalformed) {
		k.log.Warn("the answer to a renewal is malformed", "sessions", len(due), "err", err)
	}
	for i, s := range due {
		if err == nil {
			s.renewed(sent, states[i])
		}
		s.rest() // without an answer the deadline stands, and a later round tries again
	}
	k.look()
}

var errMalformed = errors.New("malformed answer")

// keepAlive sends one renewal of sessions and returns what the cluster says of each.
func (k *Keeper) keepAlive(ctx context.Context, due ...*Session) ([]machine.SessionState, error) {
	ids := make([]machine.SessionID, len(due))
	for i, s := range due {
		ids[i] = s.id
	}
	res, err := k.Do(ctx, machine.Cmd{Op: machine.OpKeepAlive, Body: machine.Encode(&machine.KeepAlive{Sessions: ids})})
	switch {
	case err != nil:
		return nil, err
	case res.Code != machine.OK:
		return nil, Refused("renew", res)
	}
	var ans machine.KeepAliveAnswer
	if err := machine.Decode(res.Body, &ans); err != nil || len(ans.States) != len(due) {
		return nil, errors.Join(fmt.Errorf("%w: %d states of %d sessions", errMalformed, len(ans.States), len(due)), err)
	}
	return ans.States, nil
}

// Go runs fn in the background. The keeper's Close waits for it, and its ctx ends then.
func (k *Keeper) Go(fn func(ctx context.Context)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() == nil {
		k.work.Go(func() { fn(k.ctx) })
	}
}

// Leave ends every session, for its owners first. The functions that run under Do
// and Run are waited for: what they hold is freed only after they have returned.
// Then the sessions are closed, so that all that hangs on them is free at once.
// Nothing is opened any more. When ctx ends first, what still runs or was not
// answered is left to expire.
func (k *Keeper) Leave(ctx context.Context) error {
	k.mu.Lock()
	k.leaving = true
	k.mu.Unlock()
	all := k.all()
	for _, s := range all {
		s.end(consensus.ErrClosed)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.leave(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close ends every session of the node for its owners, with [consensus.ErrClosed]
// as the cause, and returns when nothing runs any more. The cluster is told nothing.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.stop(consensus.ErrClosed)
	k.mu.Unlock()
	for _, s := range k.all() {
		s.end(consensus.ErrClosed)
	}
	k.work.Wait()
}
