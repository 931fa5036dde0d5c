package session

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
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
	node string
	boot uint64
	ttl  time.Duration // of the default session
	log  *slog.Logger
	base time.Time // zero of the owner's clock

	ctx  context.Context // ends with Close
	stop context.CancelCauseFunc
	wake chan struct{}  // 1: a session was opened
	work sync.WaitGroup // the renewal loop and what runs in the background

	mu      sync.Mutex // guards what follows
	open    map[machine.SessionID]*Session
	def     *Session
	opening chan struct{} // closed when the one who opens the default session is done
}

// NewKeeper starts the keeper of a node. ttl is that of the default session. Close ends it.
func NewKeeper(c Cluster, node string, boot uint64, ttl time.Duration, log *slog.Logger) *Keeper {
	k := &Keeper{
		Cluster: c, node: node, boot: boot, ttl: ttl, log: log, base: time.Now(),
		wake: make(chan struct{}, 1), open: map[machine.SessionID]*Session{},
	}
	k.ctx, k.stop = context.WithCancelCause(context.Background())
	k.work.Go(k.renew)
	return k
}

// now is the owner's clock: time since the keeper started, suspend included.
func (k *Keeper) now() time.Duration { return time.Since(k.base) + suspended() }

// Default returns the node's own session, which is opened by its first use and
// opened anew after a loss.
func (k *Keeper) Default(ctx context.Context) (*Session, error) {
	for {
		k.mu.Lock()
		if k.def != nil && k.def.Valid() {
			defer k.mu.Unlock()
			return k.def, nil
		}
		if wait := k.opening; wait != nil {
			k.mu.Unlock()
			select {
			case <-wait:
				continue
			case <-ctx.Done():
				return nil, fmt.Errorf("open the session of %s: %w: %w", k.node, consensus.ErrNoQuorum, context.Cause(ctx))
			}
		}
		k.opening = make(chan struct{})
		k.mu.Unlock()

		s, err := k.start(ctx, k.ttl, true)
		k.mu.Lock()
		if err == nil {
			k.def = s
		}
		close(k.opening)
		k.opening = nil
		k.mu.Unlock()
		return s, err
	}
}

// Open opens a session of its own with the given TTL.
func (k *Keeper) Open(ctx context.Context, ttl time.Duration) (*Session, error) {
	return k.start(ctx, ttl, false)
}

func (k *Keeper) start(ctx context.Context, ttl time.Duration, def bool) (*Session, error) {
	if err := context.Cause(k.ctx); err != nil {
		return nil, err
	}
	var nonce [8]byte
	rand.Read(nonce[:])
	sent := k.now()
	res, err := k.Do(ctx, machine.Cmd{Op: machine.OpOpenSession, Body: machine.Encode(&machine.OpenSession{
		TTL: uint64(ttl), Node: k.node, Boot: k.boot, Nonce: binary.BigEndian.Uint64(nonce[:]), Default: def,
	})})
	if err != nil {
		return nil, fmt.Errorf("open a session of %s: %w", k.node, err)
	}
	if res.Code != machine.OK {
		return nil, Refused("open a session", res)
	}
	s := newSession(k, machine.SessionID(res.N), ttl, sent)
	k.mu.Lock()
	k.open[s.id] = s
	k.mu.Unlock()
	s.unroute = k.Route(s.id, s.event)
	if context.Cause(k.ctx) != nil { // Close may have looked before the session was in the map
		s.end(context.Cause(k.ctx))
		return nil, context.Cause(k.ctx)
	}
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return s, nil
}

// renew is the loop that keeps the sessions: it renews those that are due in one
// command and ends those whose time has passed.
func (k *Keeper) renew() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	acked := make(chan struct{}, 1)
	for busy := false; ; {
		select {
		case <-k.ctx.Done():
			return
		case <-k.wake:
		case <-acked:
			busy = false
		case <-timer.C:
		}
		due, next := k.round()
		if len(due) > 0 && !busy {
			busy = true
			k.work.Go(func() {
				k.keepAlive(due)
				acked <- struct{}{}
			})
		}
		timer.Reset(next)
	}
}

// round ends what has passed and returns what is due for renewal and when to look again.
func (k *Keeper) round() (due []*Session, next time.Duration) {
	k.mu.Lock()
	all := make([]*Session, 0, len(k.open))
	for _, s := range k.open {
		all = append(all, s)
	}
	k.mu.Unlock()
	next = time.Minute
	now := k.now()
	for _, s := range all {
		renewAt, endsAt := s.times()
		if now >= endsAt {
			s.end(consensus.ErrSessionExpired)
			continue
		}
		if now >= renewAt {
			due = append(due, s)
			renewAt = now + s.interval()/4 // the round in flight has this long before it is looked at again
		}
		next = min(next, renewAt-now, endsAt-now)
	}
	slices.SortFunc(due, func(a, b *Session) int { return int(a.id>>1) - int(b.id>>1) })
	return due, max(next, time.Millisecond)
}

// keepAlive renews the sessions. The new deadlines count from before the command
// is sent. A round that is not answered within the shortest interval is given up:
// the next one has a later send time.
func (k *Keeper) keepAlive(due []*Session) {
	patience := 2 * time.Second
	ids := make([]machine.SessionID, len(due))
	for i, s := range due {
		ids[i] = s.id
		patience = min(patience, s.interval())
	}
	ctx, cancel := context.WithTimeout(k.ctx, max(patience, 100*time.Millisecond))
	defer cancel()
	sent := k.now()
	res, err := k.Do(ctx, machine.Cmd{Op: machine.OpKeepAlive, Body: machine.Encode(&machine.KeepAlive{Sessions: ids})})
	if err != nil || res.Code != machine.OK {
		return // the deadline stands; the next round tries again
	}
	var ans machine.KeepAliveAnswer
	if err := machine.Decode(res.Body, &ans); err != nil || len(ans.States) != len(due) {
		k.log.Warn("the answer to a renewal is malformed", "sessions", len(due), "err", err)
		return
	}
	for i, s := range due {
		s.renewed(sent, ans.States[i])
	}
}

// Go runs fn in the background. The keeper's Close waits for it, and its ctx ends then.
func (k *Keeper) Go(fn func(ctx context.Context)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() == nil {
		k.work.Go(func() { fn(k.ctx) })
	}
}

// Leave closes every session, so that what hangs on them is free at once. It
// returns when the cluster has them all closed, or when ctx ends.
func (k *Keeper) Leave(ctx context.Context) error {
	k.mu.Lock()
	all := make([]*Session, 0, len(k.open))
	for _, s := range k.open {
		all = append(all, s)
	}
	k.mu.Unlock()
	var errs []error
	for _, s := range all {
		errs = append(errs, s.Close(ctx))
	}
	return errors.Join(errs...)
}

// Close ends every session of the node for its owners, with [consensus.ErrClosed]
// as the cause, and returns when nothing runs any more. The cluster is told nothing.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.stop(consensus.ErrClosed)
	all := make([]*Session, 0, len(k.open))
	for _, s := range k.open {
		all = append(all, s)
	}
	k.mu.Unlock()
	for _, s := range all {
		s.end(consensus.ErrClosed)
	}
	k.work.Wait()
}

// Refused turns an answer that is not OK into an error.
func Refused(what string, res machine.Result) error {
	switch res.Code {
	case machine.NoSession:
		return fmt.Errorf("%s: %w", what, consensus.ErrSessionExpired)
	case machine.Full, machine.WindowFull:
		return fmt.Errorf("%s: %w: the bound is %d", what, consensus.ErrOverloaded, res.N)
	case machine.Invalid:
		return fmt.Errorf("%s: %w: %s", what, consensus.ErrInvalid, res.Body)
	case machine.Stale:
		return fmt.Errorf("%s: %w: its outcome was given up before", what, consensus.ErrUnknown)
	}
	return fmt.Errorf("%s: the cluster answered with code %d: an older version runs there", what, res.Code)
}
