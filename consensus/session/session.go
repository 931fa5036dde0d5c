package session

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	keeper  *Keeper
	id      machine.SessionID
	ttl     time.Duration
	ctx     context.Context
	cancel  context.CancelCauseFunc
	unroute func()

	mu       sync.Mutex          // guards what follows
	sent     time.Duration       // owner's clock: send of the last acknowledged renewal
	lost     bool                // final
	seq      uint64              // last sequence given
	floor    uint64              // every sequence below it is settled
	settled  map[uint64]struct{} // settled sequences above floor
	untold   []uint64            // those of them that the cluster may not know of yet
	unknown  []uint64            // outcomes that may still be asked for, oldest first
	waits    map[uint64]wait     // by the sequence of the Acquire
	grants   uint64              // grants of waits that we know of
	assigned uint64              // task assignments that we know of
	tasks    func(machine.Event)
}

func newSession(k *Keeper, id machine.SessionID, ttl, sent time.Duration) *Session {
	s := &Session{
		keeper: k, id: id, ttl: ttl, sent: sent, floor: 1, unroute: func() {},
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

// times returns when to renew and when belief ends, on the owner's clock.
func (s *Session) times() (renew, ends time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent + s.interval(), s.sent + s.life()
}

// Deadline returns when the session ends for its owner unless it is renewed before.
func (s *Session) Deadline() time.Time {
	_, ends := s.times()
	return time.Now().Add(ends - s.keeper.now())
}

// Valid reports whether the owner may still rely on the session. It does no I/O; false is final.
func (s *Session) Valid() bool {
	s.mu.Lock()
	valid := !s.lost && s.keeper.now() < s.sent+s.life()
	lost := s.lost
	s.mu.Unlock()
	if !valid && !lost {
		s.end(consensus.ErrSessionExpired)
	}
	return valid
}

// renewed takes the answer to a renewal that was sent at the given time.
func (s *Session) renewed(sent time.Duration, st machine.SessionState) {
	if !st.Open {
		s.end(consensus.ErrSessionExpired)
		return
	}
	s.mu.Lock()
	if s.lost || s.keeper.now() >= s.sent+s.life() { // too late: final is final
		s.mu.Unlock()
		s.end(consensus.ErrSessionExpired)
		return
	}
	s.sent = max(s.sent, sent)
	missedGrant := st.Grants > s.grants && len(s.waits) > 0
	s.grants = max(s.grants, st.Grants)
	tasks := s.tasks
	if st.Assigned <= s.assigned {
		tasks = nil
	}
	s.assigned = max(s.assigned, st.Assigned)
	s.mu.Unlock()
	if missedGrant {
		s.ask()
	}
	if tasks != nil { // a notice was lost on the way (protocol 15): the owner reads what it has
		tasks(machine.Event{Session: s.id})
	}
}

// end ends the session for its owner. Only the first call counts.
func (s *Session) end(cause error) {
	s.mu.Lock()
	if s.lost {
		s.mu.Unlock()
		return
	}
	s.lost = true
	s.mu.Unlock()
	s.cancel(cause)
	k := s.keeper
	k.mu.Lock()
	delete(k.open, s.id)
	if k.def == s {
		k.def = nil
	}
	k.mu.Unlock()
	s.unroute()
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
	if errors.Is(err, consensus.ErrUnknown) {
		s.mayRetry(cmd.Seq)
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

// lagging is how far the floor may fall behind before commands name the settled
// sequences above it one by one. Below that the floor alone says enough.
const lagging = 512

// acknowledge says which answers the cluster may forget: all below floor, and some above it.
func (s *Session) acknowledge(seq uint64) (floor uint64, done []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seq-s.floor < lagging {
		return s.floor, nil
	}
	s.untold = slices.DeleteFunc(s.untold, func(q uint64) bool { return q < s.floor })
	return s.floor, slices.Clone(s.untold[:min(len(s.untold), 32)]) // more go with the next commands
}

func (s *Session) told(done []uint64, answered bool) {
	if !answered || len(done) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untold = slices.DeleteFunc(s.untold, func(q uint64) bool { return slices.Contains(done, q) })
}

// settle marks a command as answered or given up: a late copy of it will be refused.
func (s *Session) settle(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settleLocked(seq)
}

func (s *Session) settleLocked(seq uint64) {
	if seq < s.floor {
		return
	}
	s.settled[seq] = struct{}{}
	if seq > s.floor {
		s.untold = append(s.untold, seq)
	}
	for {
		if _, ok := s.settled[s.floor]; !ok {
			break
		}
		delete(s.settled, s.floor)
		s.floor++
	}
	if len(s.settled) == 0 {
		s.untold = s.untold[:0]
	}
}

// retryable bounds how many unknown outcomes of a session can still be asked for.
const retryable = 256

// mayRetry keeps an unknown outcome open for Retry; the oldest beyond the bound is given up.
func (s *Session) mayRetry(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.unknown, seq) {
		s.unknown = append(s.unknown, seq)
	}
	if len(s.unknown) > retryable {
		s.settleLocked(s.unknown[0])
		s.unknown = slices.Delete(s.unknown, 0, 1)
	}
}

// wait is an Acquire that may stand in line.
type wait struct {
	space   machine.Space
	name    string
	granted chan machine.Event
}

// Await registers for the grant of the wait that the Acquire with sequence seq may
// become. It is called before that command is sent. The channel receives at most
// one event; forget is called when nobody listens any more.
func (s *Session) Await(seq uint64, space machine.Space, name string) (granted <-chan machine.Event, forget func()) {
	w := wait{space: space, name: name, granted: make(chan machine.Event, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[seq] = w
	return w.granted, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waits, seq)
	}
}

// Tasks registers who is told of task assignments and cancellations, and by an
// event of Kind 0 that some may have been missed. fn must not block.
func (s *Session) Tasks(fn func(machine.Event)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = fn
}

// event takes what the cluster pushes for this session. It must not block.
func (s *Session) event(e machine.Event) {
	switch e.Kind {
	case machine.EventGranted:
		s.grant(e.Seq, e)
	case machine.EventClosed:
		s.end(consensus.ErrSessionExpired)
	case machine.EventAssigned, machine.EventCancel:
		s.mu.Lock()
		fn := s.tasks
		if e.Kind == machine.EventAssigned {
			s.assigned = max(s.assigned, e.N)
		}
		s.mu.Unlock()
		if fn != nil {
			fn(e)
		}
	case 0: // another leader: whatever the old one had to tell may be lost
		s.ask()
		s.mu.Lock()
		fn := s.tasks
		s.mu.Unlock()
		if fn != nil {
			fn(e)
		}
	}
}

func (s *Session) grant(seq uint64, e machine.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants++
	if w, ok := s.waits[seq]; ok {
		delete(s.waits, seq)
		w.granted <- e // has room for the one event it ever gets
	}
}

// ask asks again for the state of every wait: its grant may have been told to nobody.
func (s *Session) ask() {
	s.mu.Lock()
	waits := maps.Clone(s.waits)
	s.mu.Unlock()
	if len(waits) == 0 {
		return
	}
	s.keeper.Go(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, s.ttl)
		defer cancel()
		for _, seq := range slices.Sorted(maps.Keys(waits)) {
			w := waits[seq]
			res, err := s.keeper.Query(ctx, &machine.Query{Kind: machine.QueryWait, Session: s.id, Seq: seq, Space: w.space, Name: w.name})
			if err == nil && res.Code == machine.OK {
				s.grant(seq, machine.Event{Kind: machine.EventGranted, Session: s.id, Seq: seq, Token: res.Token})
			}
		}
	})
}
