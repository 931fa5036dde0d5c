package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// ID names a session for ever. It prints as hex.
type ID uint64

// String returns the id in hex.
func (id ID) String() string { return strconv.FormatUint(uint64(id), 16) }

// Session is a lease that locks, leaderships, ephemeral keys and tasks hang on.
type Session struct {
	keeper *Keeper
	id     machine.SessionID
	ttl    time.Duration
	ctx    context.Context
	cancel context.CancelCauseFunc

	mu       sync.Mutex          // guards what follows
	sent     time.Duration       // owner's clock: send of the last acknowledged renewal
	tried    time.Duration       // owner's clock: begin of the last renewal
	renewing bool                // a renewal is on its way
	lost     error               // why it has ended; final
	ends     map[*ending]bool    // who is told of the end
	running  int                 // functions of Do and Run
	idle     chan struct{}       // closed when running is 0 again
	unroute  func()              // nil until there is a route
	seq      uint64              // last sequence given
	floor    uint64              // every sequence below it is settled
	settled  map[uint64]struct{} // settled sequences above floor
	untold   []uint64            // those of them that the cluster may not know of yet
	unknown  []uint64            // outcomes that may still be asked for, oldest first
	waits    map[uint64]wait     // by the sequence of the Acquire
	grants   uint64              // of SessionState: as of the last time all waits were asked for
	asking   bool                // the waits are being asked for
	assigned uint64              // task assignments that we know of
	tasks    func(machine.Event)
}

// ending is one OnEnd.
type ending struct{ fn func(cause error) }

func newSession(k *Keeper, id machine.SessionID, ttl, sent time.Duration) *Session {
	s := &Session{
		keeper: k, id: id, ttl: ttl, sent: sent, floor: 1, ends: map[*ending]bool{},
		settled: map[uint64]struct{}{}, waits: map[uint64]wait{},
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// ID returns the session's id.
func (s *Session) ID() ID { return ID(s.id) }

// Context ends when the session has ended for its owner, before anything that hangs
// on it can be granted to another. Cause: [consensus.ErrSessionExpired], or
// [consensus.ErrClosed] after Close of the session or its node.
func (s *Session) Context() context.Context { return s.ctx }

// TTL returns the lease's length.
func (s *Session) TTL() time.Duration { return s.ttl }

func (s *Session) interval() time.Duration { return min(s.ttl/5, 2*time.Second) }

// life is how long the owner believes after the send of an acknowledged renewal.
func (s *Session) life() time.Duration { return s.ttl*9/10 - min(s.ttl/10, time.Second) }

// plan returns when to renew, from when on that may be done along with others, and
// when belief ends, on the owner's clock. A renewal that had no answer is repeated
// after a quarter of the interval, and not along with others: it would hold them up.
func (s *Session) plan() (renew, along, ends time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends = s.sent + s.life()
	renew = s.sent + s.interval()
	switch {
	case s.renewing:
		return ends, ends, ends
	case s.tried > s.sent:
		renew = max(renew, s.tried+s.interval()/4)
		return renew, renew, ends
	}
	return renew, renew - s.interval()/4, ends
}

// begin marks a renewal as on its way; false if one is already, or the session has ended.
func (s *Session) begin(now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.renewing || s.lost != nil {
		return false
	}
	s.renewing, s.tried = true, now
	return true
}

func (s *Session) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewing = false
}

// Deadline returns when the session ends for its owner unless it is renewed before.
func (s *Session) Deadline() time.Time {
	s.mu.Lock()
	ends := s.sent + s.life()
	s.mu.Unlock()
	return time.Now().Add(ends - s.keeper.now())
}

// Valid reports whether the owner may still rely on the session. It does no I/O; false is final.
func (s *Session) Valid() bool {
	s.mu.Lock()
	lost, over := s.lost != nil, s.overdue()
	s.mu.Unlock()
	if over && !lost {
		s.end(consensus.ErrSessionExpired)
	}
	return !lost && !over
}

// Err returns why the session is not valid any more, or nil.
func (s *Session) Err() error {
	if s.Valid() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// overdue reports whether the owner's lease has run out. s.mu is held.
func (s *Session) overdue() bool { return s.keeper.now() >= s.sent+s.life() }

// renewed takes the answer to a renewal that was sent at the given time.
func (s *Session) renewed(sent time.Duration, st machine.SessionState) {
	s.mu.Lock()
	if !st.Open || s.lost != nil || s.overdue() { // the last two: too late, final is final
		s.mu.Unlock()
		s.end(consensus.ErrSessionExpired)
		return
	}
	s.sent = max(s.sent, sent)
	tasks := s.tasks
	if tasks != nil && st.Assigned > s.assigned { // the owner reads all it has: it knows of these then
		s.assigned = st.Assigned
	} else {
		tasks = nil
	}
	s.mu.Unlock()
	s.ask(&st.Grants)
	if tasks != nil { // a notice was lost on the way (protocol 15): the owner reads what it has
		tasks(machine.Event{Session: s.id})
	}
}

// end ends the session for its owner. Only the first call counts. When it returns
// to that caller, all contexts that hang on the session have ended.
func (s *Session) end(cause error) {
	s.mu.Lock()
	if s.lost != nil {
		s.mu.Unlock()
		return
	}
	s.lost = cause
	ends, unroute := s.ends, s.unroute
	s.ends, s.unroute = nil, nil
	s.mu.Unlock()
	s.cancel(cause)
	for e := range ends {
		e.fn(cause)
	}
	s.keeper.forget(s)
	if unroute != nil {
		unroute()
	}
}

// routed takes what ends the route of the session's events.
func (s *Session) routed(stop func()) {
	s.mu.Lock()
	ended := s.lost != nil
	if !ended {
		s.unroute = stop
	}
	s.mu.Unlock()
	if ended { // before the route was known
		stop()
	}
}

// OnEnd has fn called when the session ends, before the call that finds it ended
// returns: at once if it has ended already. fn must not block. forget takes that back.
func (s *Session) OnEnd(fn func(cause error)) (forget func()) {
	e := &ending{fn}
	s.mu.Lock()
	lost := s.lost
	if lost == nil {
		s.ends[e] = true
	}
	s.mu.Unlock()
	if lost != nil {
		fn(lost)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ends, e)
	}
}

// Running tells that a function runs that relies on the session, until done is
// called. [Keeper.Leave] waits for it before it frees what the session holds.
func (s *Session) Running() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running++; s.running == 1 {
		s.idle = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.running--; s.running == 0 {
			close(s.idle)
			s.idle = nil
		}
	})
}

// leave closes a session that has ended for its owner once nothing runs under it.
func (s *Session) leave(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("session %s is left to expire, functions of Do or Run have not returned: %w", s.ID(), context.Cause(ctx))
		}
	}
	return s.Close(ctx)
}

// Close ends the session: first for its owner, then on the cluster, which frees at
// once all that hangs on it. If ctx ends before the cluster has answered, the
// session is left to expire; Close may be called again.
func (s *Session) Close(ctx context.Context) error {
	s.end(consensus.ErrClosed)
	res, err := s.Do(ctx, machine.OpCloseSession, &machine.CloseSession{})
	if errors.Is(err, consensus.ErrSessionExpired) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("close session %s: %w", s.ID(), err)
	}
	if res.Code != machine.OK {
		return Refused("close session "+s.ID().String(), res)
	}
	return nil
}

// maxInsisted bounds what insists at one time.
const maxInsisted = 4096

// Insist runs fn in the background, again until it returns nil, until the session
// has ended, or until the node is closed: nothing that hangs on a session that goes
// on living may be forgotten. fn runs at least once, with a ctx of two TTL. Beyond
// 4096 of them at one time on a node the session is ended instead, and with it,
// by expiry, what fn would have undone.
func (s *Session) Insist(fn func(ctx context.Context) error) {
	k := s.keeper
	k.mu.Lock()
	full := k.insisted >= maxInsisted
	if !full {
		k.insisted++
	}
	k.mu.Unlock()
	if full {
		s.end(consensus.ErrSessionExpired)
		return
	}
	k.Go(func(ctx context.Context) {
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.insisted--
		}()
		for s.attempt(ctx, fn) != nil && s.Valid() && ctx.Err() == nil {
			pause := time.NewTimer(s.interval() / 4)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
	})
}

func (s *Session) attempt(ctx context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.ttl)
	defer cancel()
	return fn(ctx)
}

// Do sends one command of the session and waits for its outcome. It is how the
// primitives are built. The command is applied at most once, however often it is
// sent. Errors: those of [consensus.Client.Do], and [consensus.ErrSessionExpired].
// An unknown outcome can be asked for again through [consensus.UnknownError].Retry.
func (s *Session) Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error) {
	return s.DoAt(ctx, s.Sequence(), op, body)
}

// Sequence reserves the number of a command. The command must be sent with DoAt.
func (s *Session) Sequence() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return s.seq
}

// DoAt is Do for a reserved sequence.
func (s *Session) DoAt(ctx context.Context, seq uint64, op machine.Op, body machine.Message) (machine.Result, error) {
	cmd := machine.Cmd{Session: s.id, Seq: seq, Op: op, Body: machine.Encode(body)}
	cmd.Floor, cmd.Done = s.acknowledge(seq)
	return s.send(ctx, cmd)
}

func (s *Session) send(ctx context.Context, cmd machine.Cmd) (machine.Result, error) {
	res, err := s.keeper.Do(ctx, cmd)
	if u, ok := errors.AsType[*consensus.UnknownError](err); ok {
		s.mayRetry(cmd.Seq)
		u.Then(func(machine.Result) error { s.settle(cmd.Seq); return nil })
		if errors.Is(err, consensus.ErrSessionExpired) {
			s.end(consensus.ErrSessionExpired)
		}
		return res, err
	}
	s.told(cmd.Done, err == nil)
	s.settle(cmd.Seq)
	if err == nil && res.Code == machine.NoSession && (res.N == 0 || res.N == uint64(s.id)) {
		s.end(consensus.ErrSessionExpired)
		return res, fmt.Errorf("session %s: %w", s.ID(), consensus.ErrSessionExpired)
	}
	return res, err
}
