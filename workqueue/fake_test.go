package workqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// world is a cluster in one process: engines over a real machine and a network with
// faults. Commands take commit to apply, messages take trip.
type world struct {
	t      testing.TB
	commit time.Duration
	trip   time.Duration

	mu       sync.Mutex // guards what follows
	machine  *machine.Machine
	index    uint64
	base     time.Time
	seq      uint64
	sessions map[machine.SessionID]*fakeSession
	watchers map[*watcher]struct{}
	applied  map[machine.Op]int
	deaf     bool // events to sessions are lost
	noQuorum bool
	random   *rand.Rand
	peers    map[string]*fakePeer
	lossy    float64 // of requests and of answers
	doubled  float64
	jitter   time.Duration
	calls    int
	slow     string // this method takes a second

	stop chan struct{}
	work sync.WaitGroup
}

func newWorld(t testing.TB) *world {
	w := &world{
		t: t, commit: 2 * time.Millisecond, trip: 200 * time.Microsecond,
		machine: machine.New(), base: time.Now(), sessions: map[machine.SessionID]*fakeSession{},
		watchers: map[*watcher]struct{}{}, applied: map[machine.Op]int{}, peers: map[string]*fakePeer{},
		random: rand.New(rand.NewPCG(1, 2)), stop: make(chan struct{}),
	}
	w.work.Go(w.lead)
	return w
}

// lead does what a leader does by itself: ticks, keepalives and expiry.
func (w *world) lead() {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		now := w.now()
		if at, some := w.machine.NextDue(); some && at <= now {
			w.apply(machine.Cmd{Op: machine.OpTick})
		}
		if at, some := w.machine.Expirable(); some && at <= now {
			w.apply(machine.Cmd{Op: machine.OpExpire, Body: machine.Encode(&machine.Expire{Limit: 16})})
		}
		w.mu.Unlock()
		if n%40 == 0 {
			w.keepAlive()
		}
	}
}

func (w *world) keepAlive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, s := range w.sessions {
		if s.cut || w.noQuorum {
			continue
		}
		res := w.apply(machine.Cmd{Op: machine.OpKeepAlive, Body: machine.Encode(&machine.KeepAlive{Sessions: []machine.SessionID{id}})})
		var a machine.KeepAliveAnswer
		require.NoError(w.t, machine.Decode(res.Body, &a))
		if !a.States[0].Open {
			s.end(consensus.ErrSessionExpired)
			continue
		}
		s.belief.Reset(s.ttl * 9 / 10)
		if a.States[0].Assigned > s.assigned && s.fn != nil {
			go s.fn(machine.Event{})
		}
	}
}

// commands returns how many commands of a kind were applied.
func (w *world) commands(op machine.Op) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applied[op]
}

// set changes the world's faults.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) now() uint64 { return uint64(time.Since(w.base)) }

// apply applies one command as an entry of its own and passes its events on. w.mu is held.
func (w *world) apply(cmd machine.Cmd) machine.Result {
	w.index++
	w.applied[cmd.Op]++
	entry := machine.AppendEntry(nil, machine.Stamp{Proposer: 1, Number: w.index, Clock: w.now(), Wall: time.Now().UnixNano()}, [][]byte{machine.Encode(&cmd)})
	out, err := w.machine.Apply(w.index, 1, entry)
	require.NoError(w.t, err)
	for _, ev := range out.Events {
		if ev.Session != 0 {
			w.push(ev)
			continue
		}
		for wt := range w.watchers {
			if wt.topic.Matches(wt.name, &ev) {
				wt.events <- ev
			}
		}
	}
	return out.Answers[0].Result
}

func (w *world) push(ev machine.Event) {
	s := w.sessions[ev.Session]
	if s == nil {
		return
	}
	if ev.Kind == machine.EventClosed {
		s.end(consensus.ErrSessionExpired)
		return
	}
	if s.fn == nil || s.cut || w.deaf {
		return
	}
	if ev.Kind == machine.EventAssigned {
		var a machine.Assignment
		require.NoError(w.t, machine.Decode(ev.Body, &a))
		s.assigned = max(s.assigned, a.Total)
	}
	s.events <- ev
}

type watcher struct {
	topic  machine.Topic
	name   string
	events chan machine.Event
}

// close ends everything; engines are closed before.
func (w *world) close() {
	close(w.stop)
	w.mu.Lock()
	for _, s := range w.sessions {
		s.end(consensus.ErrClosed)
	}
	w.mu.Unlock()
	w.work.Wait()
}

// node is an engine of the world.
type node struct {
	*Engine
	world *world
	peer  *fakePeer
	def   *fakeSession
}

func (n *node) Queues() *Engine { return n.Engine }

func (w *world) node(name string, boot uint64) *node {
	n := &node{world: w}
	w.mu.Lock()
	n.peer = &fakePeer{world: w, name: name, boot: boot, alive: true, handlers: map[string]handler{}, changed: make(chan struct{})}
	w.peers[name] = n.peer
	w.mu.Unlock()
	n.def = w.open(name, boot, time.Minute)
	n.Engine = NewEngine(EngineConfig{Ledger: n.ledger(), Peers: n.peer, Logger: slog.New(slog.NewTextHandler(logs(w.t), nil))})
	w.change()
	return n
}

func (n *node) ledger() Ledger { return &fakeLedger{n} }

// kill closes the engine as a crash would: the ledger hears nothing more of it.
func (n *node) kill() {
	n.world.mu.Lock()
	n.def.cut = true
	for _, s := range n.world.sessions {
		if s.node == n.peer.name {
			s.cut = true
			s.end(consensus.ErrClosed)
		}
	}
	n.peer.down = true
	n.world.mu.Unlock()
	require.NoError(n.world.t, n.Close())
}

// fakeSession is a session and its Claimer.
type fakeSession struct {
	world    *world
	id       machine.SessionID
	node     string
	ttl      time.Duration
	fn       func(machine.Event)
	events   chan machine.Event
	ctx      context.Context
	cancel   context.CancelCauseFunc
	belief   *time.Timer
	seq      uint64
	assigned uint64
	cut      bool // nothing passes any more
}

func (w *world) open(node string, boot uint64, ttl time.Duration) *fakeSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	res := w.apply(machine.Cmd{Op: machine.OpOpenSession, Body: machine.Encode(&machine.OpenSession{TTL: uint64(ttl), Node: node, Boot: boot, Nonce: w.seq})})
	require.Equal(w.t, machine.OK, res.Code)
	s := &fakeSession{world: w, id: machine.SessionID(res.N), node: node, ttl: ttl, events: make(chan machine.Event, 10000)}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.belief = time.AfterFunc(ttl*9/10, func() { s.cancel(consensus.ErrSessionExpired) })
	w.sessions[s.id] = s
	w.work.Go(s.deliver)
	return s
}

func (s *fakeSession) deliver() {
	for {
		select {
		case ev := <-s.events:
			time.Sleep(s.world.trip)
			if s.ctx.Err() == nil {
				s.fn(ev)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// end ends the session for its owner. world.mu is held.
func (s *fakeSession) end(cause error) {
	s.belief.Stop()
	s.cancel(cause)
	delete(s.world.sessions, s.id)
}

func (s *fakeSession) ID() machine.SessionID    { return s.id }
func (s *fakeSession) Context() context.Context { return s.ctx }
func (s *fakeSession) Events(fn func(machine.Event)) {
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.fn = fn
}

func (s *fakeSession) Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error) {
	w := s.world
	time.Sleep(w.commit)
	for {
		w.mu.Lock()
		if !w.noQuorum && !s.cut {
			break
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return machine.Result{}, fmt.Errorf("%w: %w", consensus.ErrNoQuorum, context.Cause(ctx))
		case <-s.ctx.Done():
			return machine.Result{}, context.Cause(s.ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
	defer w.mu.Unlock()
	s.seq++
	res := w.apply(machine.Cmd{Session: s.id, Seq: s.seq, Floor: s.seq, Op: op, Body: machine.Encode(body)})
	if res.Code == machine.NoSession {
		s.end(consensus.ErrSessionExpired)
		return res, consensus.ErrSessionExpired
	}
	return res, nil
}

func (s *fakeSession) Close(ctx context.Context) error {
	_, err := s.Do(ctx, machine.OpCloseSession, &machine.CloseSession{})
	s.world.mu.Lock()
	defer s.world.mu.Unlock()
	s.end(consensus.ErrClosed)
	return err
}

type fakeLedger struct{ *node }

func (l *fakeLedger) Open(ctx context.Context, ttl time.Duration) (Claimer, error) {
	l.world.mu.Lock()
	bad := l.world.noQuorum || l.peer.down
	l.world.mu.Unlock()
	if bad {
		<-ctx.Done()
		return nil, consensus.ErrNoQuorum
	}
	return l.world.open(l.peer.name, l.peer.boot, ttl), nil
}

func (l *fakeLedger) Do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error) {
	return l.def.Do(ctx, op, body)
}

func (l *fakeLedger) Query(ctx context.Context, q *machine.Query) (machine.Result, error) {
	w := l.world
	select {
	case <-time.After(w.trip):
	case <-ctx.Done():
		return machine.Result{}, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machine.Query(q), nil
}

func (l *fakeLedger) Watch(ctx context.Context, topic machine.Topic, name string, _ machine.Rev) iter.Seq2[machine.Event, error] {
	return func(yield func(machine.Event, error) bool) {
		w := l.world
		wt := &watcher{topic: topic, name: name, events: make(chan machine.Event, 100_000)}
		w.mu.Lock()
		w.watchers[wt] = struct{}{}
		w.mu.Unlock()
		defer func() {
			w.mu.Lock()
			delete(w.watchers, wt)
			w.mu.Unlock()
		}()
		if !yield(machine.Event{Rev: 1}, nil) {
			return
		}
		for {
			select {
			case ev := <-wt.events:
				if !yield(ev, nil) {
					return
				}
			case <-ctx.Done():
				yield(machine.Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

type handler func(ctx context.Context, from string, boot uint64, req []byte) ([]byte, error)

// fakePeer is a node's end of the network.
type fakePeer struct {
	world    *world
	name     string
	boot     uint64
	alive    bool // as membership says
	down     bool // nothing passes
	handlers map[string]handler
	changed  chan struct{}
}

// change wakes all who watch the members.
func (w *world) change() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.peers {
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// bury lets membership declare a node dead.
func (w *world) bury(n *node) {
	w.mu.Lock()
	n.peer.alive = false
	w.mu.Unlock()
	w.change()
}

func (p *fakePeer) Self() string { return p.name }

func (p *fakePeer) Changed() <-chan struct{} {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	return p.changed
}

func (p *fakePeer) List() (all []Peer) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	for _, o := range p.world.peers {
		all = append(all, Peer{Name: o.name, Boot: o.boot, Alive: o.alive})
	}
	return all
}

func (p *fakePeer) Answer(method string, h func(ctx context.Context, from string, boot uint64, req []byte) ([]byte, error)) {
	p.handlers[method] = h
}

// fate decides what becomes of a message.
func (w *world) fate() (lost, twice bool, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delay = w.trip
	if w.jitter > 0 {
		delay += time.Duration(w.random.Int64N(int64(w.jitter)))
	}
	return w.random.Float64() < w.lossy, w.random.Float64() < w.doubled, delay
}

func (p *fakePeer) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	w := p.world
	w.mu.Lock()
	w.calls++
	dest := w.peers[to]
	blocked := dest == nil || dest.down || p.down
	w.mu.Unlock()
	lost, twice, delay := w.fate()
	w.mu.Lock()
	if method == w.slow {
		delay += time.Second
	}
	w.mu.Unlock()
	if blocked || lost {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	type answer struct {
		b   []byte
		err error
	}
	got := make(chan answer, 2)
	carry := func(delay time.Duration) {
		time.Sleep(delay)
		served, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		b, err := dest.handlers[method](served, p.name, p.boot, slices.Clone(req))
		lost, _, delay := w.fate()
		w.mu.Lock()
		lost = lost || dest.down || p.down
		w.mu.Unlock()
		if !lost {
			time.Sleep(delay)
			got <- answer{b, err}
		}
	}
	w.work.Go(func() { carry(delay) })
	if twice {
		_, _, later := w.fate()
		w.work.Go(func() { carry(delay + 10*later) })
	}
	select {
	case a := <-got:
		return a.b, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// logs is where engines log to: nowhere, unless the test is verbose.
func logs(t testing.TB) io.Writer {
	if testing.Verbose() {
		return t.Output()
	}
	return io.Discard
}

// pass lets time pass; the tests run in bubbles of fake time.
func pass(d time.Duration) { time.Sleep(d) }

type load struct{ N int }

// ledgerOfRuns is what handlers saw.
type ledgerOfRuns struct {
	mu      sync.Mutex // guards what follows
	started map[string]int
	done    map[int]int
	tries   map[[2]int]int
}

func newRuns() *ledgerOfRuns {
	return &ledgerOfRuns{started: map[string]int{}, done: map[int]int{}, tries: map[[2]int]int{}}
}

func (l *ledgerOfRuns) handler(node string, work time.Duration) Handler[load] {
	return func(ctx context.Context, t *Task[load]) error {
		l.mu.Lock()
		l.started[node]++
		l.tries[[2]int{t.Payload.N, t.Attempt}]++
		l.mu.Unlock()
		select {
		case <-time.After(work):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		l.mu.Lock()
		l.done[t.Payload.N]++
		l.mu.Unlock()
		return t.SetResult(t.Payload.N * 2)
	}
}

func (l *ledgerOfRuns) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.done)
}

func (l *ledgerOfRuns) startedOn(node string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.started[node]
}

// noAttemptTwice is T2 as a user sees it.
func (l *ledgerOfRuns) noAttemptTwice(t testing.TB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, n := range l.tries {
		if n != 1 {
			t.Errorf("attempt %d of task %d was started %d times", at[1], at[0], n)
		}
	}
}

// bubble runs a test over n nodes in fake time, in both modes or one.
func bubble(t *testing.T, n int, f func(t *testing.T, w *world, nodes []*node)) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var nodes []*node
		for i := range n {
			nodes = append(nodes, w.node(fmt.Sprintf("n%d", i), 1))
		}
		defer w.close()
		defer func() {
			for _, n := range nodes {
				require.NoError(t, n.Close())
			}
		}()
		f(t, w, nodes)
	})
}

func inBothModes(t *testing.T, n int, f func(t *testing.T, w *world, nodes []*node, mode Mode)) {
	for _, mode := range []Mode{Durable, Volatile} {
		t.Run(mode.String(), func(t *testing.T) {
			bubble(t, n, func(t *testing.T, w *world, nodes []*node) { f(t, w, nodes, mode) })
		})
	}
}

// serve handles the queue on every node until stop is called.
func serve(t testing.TB, nodes []*node, cfg Config, workers int, h func(node string) Handler[load]) (qs []*Queue[load], stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, n := range nodes {
		q, err := Open[load](n, "jobs", cfg)
		require.NoError(t, err)
		qs = append(qs, q)
		wg.Go(func() {
			err := q.Handle(ctx, h(n.peer.name), Workers{N: workers})
			if err != nil && !errors.Is(err, consensus.ErrClosed) {
				t.Errorf("handle on %s: %v", n.peer.name, err)
			}
		})
	}
	return qs, func() { cancel(); wg.Wait() }
}

func submitAll(t testing.TB, q *Queue[load], n int) []TaskID {
	ids := make([]TaskID, n)
	var wg sync.WaitGroup
	for c := range 32 {
		wg.Go(func() {
			for k := c; k < n; k += 32 {
				id, err := q.Submit(context.Background(), load{k})
				if err != nil {
					t.Errorf("submit %d: %v", k, err)
				}
				ids[k] = id
			}
		})
	}
	wg.Wait()
	return ids
}
