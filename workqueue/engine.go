package workqueue

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// Ledger is what durable queues need of the consensus room.
type Ledger interface {
	// Open opens a session of its own, for claims.
	Open(ctx context.Context, ttl time.Duration) (Claimer, error)
	// Query reads the state, linearizably.
	Query(ctx context.Context, q *machine.Query) (machine.Result, error)
	// Do sends a command under the node's own session. It is applied at most once.
	Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error)
	// Watch yields the events of a topic. The first one, of Kind 0, says that every later one will come.
	Watch(ctx context.Context, topic machine.Topic, name string, from machine.Rev) iter.Seq2[machine.Event, error]
}

// Claimer is a session that claims hang on.
type Claimer interface {
	ID() machine.SessionID
	// Do sends a command under the session. It is applied at most once.
	Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error)
	// Events registers who is told of assignments and cancellations, and by an event
	// of Kind 0 that some may have been missed. fn does not block.
	Events(fn func(machine.Event))
	// Context ends when the session has ended for its owner, before anybody else can be given its claims.
	Context() context.Context
	// Close ends the session; the ledger has its claims back at once.
	Close(ctx context.Context) error
}

// Peers is what volatile queues need of the membership and transport rooms.
type Peers interface {
	// Self returns the name of this node.
	Self() string
	// List returns the members; this node may be among them.
	List() []Peer
	// Call calls a method of another node.
	Call(ctx context.Context, to, method string, req []byte) ([]byte, error)
	// Answer says who answers a method of this node.
	Answer(method string, h func(ctx context.Context, from string, boot uint64, req []byte) ([]byte, error))
	// Changed is closed at the next change of List.
	Changed() <-chan struct{}
}

// Peer is a member, as far as stealing is concerned.
type Peer struct {
	Name  string
	Boot  uint64 // grows with every start of the node
	Alive bool   // not declared dead
}

// EngineConfig is what an Engine is made of.
type EngineConfig struct {
	Ledger Ledger
	Peers  Peers
	Logger *slog.Logger // default slog.Default()
}

// Engine runs the queues of one node.
type Engine struct {
	ledger Ledger
	peers  Peers
	log    *slog.Logger
	self   string
	start  uint64 // random: names the volatile tasks of this engine for ever

	ctx      context.Context // ends with Close
	stop     context.CancelCauseFunc
	draining chan struct{}  // closed: nothing more is started
	handling sync.WaitGroup // Handle calls
	work     sync.WaitGroup // everything else that runs

	mu      sync.Mutex // guards what follows
	benches map[string]*bench
	leases  map[time.Duration]*lease
	closed  bool
	drained bool

	lifelines lifelines
}

// NewEngine starts the engine of a node. Close ends it.
func NewEngine(cfg EngineConfig) *Engine {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	var start [8]byte
	rand.Read(start[:])
	e := &Engine{
		ledger: cfg.Ledger, peers: cfg.Peers, log: cfg.Logger, self: cfg.Peers.Self(),
		start:    binary.BigEndian.Uint64(start[:]),
		draining: make(chan struct{}),
		benches:  map[string]*bench{}, leases: map[time.Duration]*lease{},
	}
	e.ctx, e.stop = context.WithCancelCause(context.Background())
	e.lifelines.askers = map[lifeline]struct{}{}
	e.answer()
	return e
}

// open returns the bench of a queue, which the first call makes.
func (e *Engine) open(name string, cfg Config) (*bench, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.drained {
		return nil, fmt.Errorf("open queue %q: %w", name, consensus.ErrClosed)
	}
	if b, ok := e.benches[name]; ok {
		if b.cfg.Mode != cfg.Mode {
			return nil, &ConfigError{Queue: name, Field: "Mode", Reason: fmt.Sprintf("is %v, but the queue is open here as %v", cfg.Mode, b.cfg.Mode)}
		}
		return b, nil
	}
	b := newBench(name, cfg)
	if cfg.Mode == Durable {
		b.keeper = newDurable(e, b)
	} else {
		b.keeper = newVolatile(e, b)
	}
	e.benches[name] = b
	return b, nil
}

// volatile returns the volatile queue of that name; nil if it is not open here.
func (e *Engine) volatile(name string) *volatile {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b, ok := e.benches[name]; ok {
		v, _ := b.keeper.(*volatile)
		return v
	}
	return nil
}

// run runs fn in the background; Close waits for it, and e.ctx ends then. False: the engine is closed.
func (e *Engine) run(fn func()) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.work.Go(fn)
	return true
}

// enter counts a Handle call; leave ends it.
func (e *Engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.drained {
		return false
	}
	e.handling.Add(1)
	return true
}

func (e *Engine) leave() { e.handling.Done() }

func (e *Engine) isDraining() bool {
	select {
	case <-e.draining:
		return true
	default:
		return false
	}
}

// Drain stops all workers: what was not started is handed back, running handlers
// are waited for as long as their [Workers].Drain allows, and claims are closed. It
// returns when that is done or ctx ends. Volatile tasks submitted on this node that
// are not finished go with it.
func (e *Engine) Drain(ctx context.Context) error {
	e.mu.Lock()
	if !e.drained {
		e.drained = true
		close(e.draining)
	}
	e.mu.Unlock()
	idle := make(chan struct{})
	if !e.run(func() { e.handling.Wait(); close(idle) }) {
		return nil
	}
	select {
	case <-idle:
	case <-ctx.Done():
		return fmt.Errorf("drain the queues of %s: handlers are still running: %w", e.self, context.Cause(ctx))
	case <-e.ctx.Done():
		return nil
	}
	if err := e.reported(ctx); err != nil {
		return fmt.Errorf("drain the queues of %s: %w", e.self, err)
	}
	return nil
}

// reported waits until every end of an attempt is where it belongs, and closes the claims.
func (e *Engine) reported(ctx context.Context) error {
	e.mu.Lock()
	leases := make([]*lease, 0, len(e.leases))
	for _, l := range e.leases {
		leases = append(leases, l)
	}
	e.mu.Unlock()
	for _, l := range leases {
		if err := l.close(ctx); err != nil {
			return err
		}
	}
	for _, v := range e.volatiles() {
		if err := v.reported(ctx); err != nil {
			return err
		}
	}
	return nil
}

// patience is how long Close waits for handlers whose ctx has ended.
const patience = time.Second

// Close stops the engine at once: the contexts of handlers end with
// [consensus.ErrClosed], what they had is reported to nobody, and every call
// returns. Handlers that ignore their ctx are left behind after a second. It may be
// called again.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.stop(consensus.ErrClosed)
	e.work.Wait()
	e.mu.Lock()
	for _, b := range e.benches {
		b.shedder.Stop()
	}
	e.mu.Unlock()
	for _, v := range e.volatiles() {
		v.stopTimers()
	}
	gone := make(chan struct{})
	go func() { e.handling.Wait(); close(gone) }() // joined below, unless a handler ignores its ctx
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-gone:
	case <-late.C:
		e.log.Warn("handlers ignore the end of their ctx and are left behind", "node", e.self)
	}
	return nil
}
