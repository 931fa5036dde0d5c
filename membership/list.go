package membership

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/clatter-go/clatter/transport"
)

// ErrClosed ends the event streams of a List that has left or was closed.
var ErrClosed = errors.New("membership is closed")

// announceEvery is the shortest time between two announcements of this node's own
// facts. The first of a burst goes out at once, the last one after this at most.
const announceEvery = 50 * time.Millisecond

// farewells is how often each member is told of a leave, so that a loss of a fifth of
// all packets leaves one in a hundred to gossip.
const farewells = 3

// List is this node's view of the cluster. See the package comment.
type List struct {
	self   transport.Peer
	name   string // under gossip: name#boot
	conf   *memberlist.Config
	ml     *memberlist.Memberlist
	port   *port
	logs   *logs
	cancel context.CancelCauseFunc
	ctx    context.Context // ends with the List
	tasks  sync.WaitGroup  // goroutines that use ml
	writer sync.WaitGroup  // the one that writes the log
	news   chan struct{}   // holds a token when own was changed

	// announcing and ending are held by whoever has sent into them. They are no mutexes
	// because their holders wait on time, which stands still in a synctest bubble while
	// a mutex is waited for.
	announcing chan struct{} // one UpdateNode at a time: it reads the own node without memberlist's lock
	ending     chan struct{} // one Leave or Close at a time: memberlist panics on Leave after Shutdown
	ended      bool          // guarded by ending

	mu      sync.Mutex // guards all below; taken under memberlist's lock, never the other way round
	roster  *roster
	feed    feed
	own     meta
	seeds   []netip.AddrPort
	changed chan struct{} // closed and replaced at every change of roster
	closed  bool
}

// Start joins the gossip. It returns as soon as another node is found, or when the
// first round of asking the seeds is over; the search goes on until somebody is found.
// ctx bounds the start only.
func Start(ctx context.Context, cfg Config) (*List, error) { return start(ctx, cfg, cfg.Transport) }

func start(ctx context.Context, cfg Config, w wire) (*List, error) {
	sources, err := cfg.check()
	if err != nil {
		return nil, fmt.Errorf("membership: %w", err)
	}
	l := newList(cfg, w)
	if l.ml, err = memberlist.Create(l.conf); err != nil {
		l.end()
		return nil, fmt.Errorf("membership: %w", err)
	}
	seed := cfg.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	s := &seeker{list: l, sources: sources, rng: rand.New(rand.NewPCG(seed, seed)), pace: tunings[cfg.Pace]}
	first := make(chan struct{})
	l.tasks.Go(func() { s.run(l.ctx, func() { close(first) }) })
	l.tasks.Go(l.announce)
	if err := l.firstRound(ctx, first); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// firstRound waits until the first round is over. One answer is enough: it names all
// others, and a seed that is not up would hold the start up for nothing.
func (l *List) firstRound(ctx context.Context, over <-chan struct{}) error {
	for {
		changed := l.Changed()
		if !l.alone() {
			return nil
		}
		select {
		case <-over:
			return nil
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("membership: first round of seeds: %w", context.Cause(ctx))
		}
	}
}

// newList starts what memberlist needs when it is created.
func newList(cfg Config, w wire) *List {
	self := w.Self()
	l := &List{
		self:       self,
		name:       gossipName(self.Name, self.Boot),
		logs:       newLogs(cfg.Logger),
		news:       make(chan struct{}, 1),
		own:        meta{zone: cfg.Zone, labels: maps.Clone(cfg.Labels)},
		changed:    make(chan struct{}),
		announcing: make(chan struct{}, 1),
		ending:     make(chan struct{}, 1),
	}
	l.roster = newRoster(self.Name, self.Boot, self.Addr, l.own, time.Now())
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	w.SetGossipName(l.name)
	l.writer.Go(func() { l.logs.run(l.ctx) })
	l.port = newPort(w)
	l.conf = gossipConfig(l.name, tunings[cfg.Pace], l.port, &gossip{l}, l.logs)
	return l
}

// Members lists the members by name, this node included: those alive or leaving, and
// the failed ones until they are forgotten. It is the state at the start of the loop.
func (l *List) Members() iter.Seq[Member] {
	return func(yield func(Member) bool) {
		for _, m := range l.members() {
			if !yield(m) {
				return
			}
		}
	}
}

func (l *List) members() (out []Member) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.roster.sorted() {
		if e.state != StateLeft {
			out = append(out, e.member())
		}
	}
	return out
}

// Events tells who is there as Joined events, then Synced, then every change, in one
// order for all watchers (M1). A watcher that falls 1024 events or more behind may get
// Resync and the differences instead of what it missed. The stream ends with the
// cause of ctx or with ErrClosed.
func (l *List) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := watcher{told: map[string]Member{}}
		for {
			events, changed, err := l.read(&w)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			for _, e := range events {
				w.tell(e)
				e.Member.Labels = maps.Clone(e.Member.Labels)
				if !yield(e, nil) {
					return
				}
			}
			if len(events) > 0 {
				continue
			}
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
	}
}

func (l *List) read(w *watcher) ([]Event, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	return w.read(&l.feed, l.roster), l.changed, nil
}

// Lookup says where a member is, a failed one included: what gossip has given up may
// still answer. It makes List a transport.AddressBook.
func (l *List) Lookup(name string) (addr netip.AddrPort, boot uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.roster.members[name]
	if e == nil || e.state == StateLeft {
		return netip.AddrPort{}, 0, false
	}
	return e.addr, e.boot, true
}

// Peers lists the other members by name, failed ones included until they are forgotten.
func (l *List) Peers() (out []Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.roster.sorted() {
		if e.state != StateLeft && e.name != l.self.Name {
			out = append(out, Peer{Name: e.name, Boot: e.boot, Addr: e.addr, State: e.state, Note: e.meta.note})
		}
	}
	return out
}

// Changed returns a channel that is closed at the next change of Peers or Members,
// and when the List ends; one that is got later is never closed. Get it before
// reading what may change.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Note tells all others n in place of what was told before. It does not wait: the
// last of several notes is sent within 50 ms and known to a small cluster some 100 ms
// later.
func (l *List) Note(n Note) {
	l.mu.Lock()
	same := l.own.note == n
	l.own.note = n
	l.mu.Unlock()
	if !same {
		l.hasNews()
	}
}

// Seeds returns the addresses that Join and Discover named in the last round, sorted,
// each once; this node's own address is among them if it is named.
func (l *List) Seeds() []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seeds)
}

// Leave tells the others that this node goes, so that they see it Left, not Failed,
// and ends the List as Close does. It takes some 0.3 s in a small cluster at the pace
// LAN. When ctx ends first, the List ends at once and the cause of ctx is returned.
// After Close it does nothing.
func (l *List) Leave(ctx context.Context) error {
	l.ending <- struct{}{}
	defer func() { <-l.ending }()
	if l.ended {
		return nil
	}
	defer l.end()
	err := l.farewell(ctx)
	if err == nil {
		l.ml.Leave(time.Nanosecond) // queues the end of this node; an error says only that it is not sent yet
		err = l.wait(ctx, spread(l.conf, l.ml.NumMembers()))
	}
	if err != nil {
		return fmt.Errorf("leave of %q cut short, peers may see a failure: %w", l.self.Name, err)
	}
	return nil
}

// farewell says that this node is about to leave: by gossip, for those who join later,
// and to each member directly, because gossip alone may reach one of them after the
// end of the node does. memberlist does not tell a leave from a failure.
func (l *List) farewell(ctx context.Context) error {
	l.mu.Lock()
	l.own.leaving = true
	l.mu.Unlock()
	l.update()
	word := append([]byte{msgFarewell}, l.name...)
	for range farewells {
		for _, n := range l.ml.Members() {
			if n.Name != l.name {
				l.ml.SendBestEffort(n, word) // an error is a loss like any other
			}
		}
		if err := l.wait(ctx, l.conf.GossipInterval); err != nil {
			return err
		}
	}
	return nil
}

// wait lets what was sent last reach the others, if there are any.
func (l *List) wait(ctx context.Context, d time.Duration) error {
	if l.alone() {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// Close ends the List without a word: the others see a failure. After it returns no
// event is told and none of our goroutines runs. It leaves the transport open.
func (l *List) Close() error {
	l.cancel(ErrClosed) // cuts a Leave short
	l.ending <- struct{}{}
	defer func() { <-l.ending }()
	if !l.ended {
		l.end()
	}
	return nil
}

// end stops everything, once, with ending held or before anyone else knows l.
func (l *List) end() {
	l.ended = true
	l.mu.Lock()
	l.closed = true
	close(l.changed)
	l.changed = make(chan struct{}) // never closed: who waits for changes of an ended List must not spin
	l.mu.Unlock()
	l.cancel(ErrClosed)
	l.port.Shutdown() // first, since joins wait in it
	l.tasks.Wait()
	if l.ml != nil {
		l.ml.Shutdown()
	}
	l.writer.Wait()
}

// see takes what memberlist tells of a node, under memberlist's lock.
func (l *List) see(s sight, err error) {
	if err != nil {
		return // NotifyAlive has refused it, with the reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.tell(l.roster.apply(s, time.Now()))
	}
}

// clash takes word of a second node with the name and boot of another.
func (l *List) clash(s sight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.tell(l.roster.clash(s, time.Now()))
	}
}

// hear takes the farewell of a member.
func (l *List) hear(i incarnation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.tell(l.roster.farewell(i, time.Now()))
	}
}

// sweep tells of conflicts that time has shown and forgets whom time has forgotten.
func (l *List) sweep(missed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	now := time.Now()
	l.roster.forget(now)
	if events := l.roster.conflicts(now, missed); len(events) > 0 {
		l.tell(events)
	}
}

// tell publishes a change, with mu held.
func (l *List) tell(events []Event) {
	l.feed.append(events...)
	close(l.changed)
	l.changed = make(chan struct{})
	for _, e := range events {
		if e.Kind == Conflict {
			l.logs.say(line{level: slog.LevelWarn, text: fmt.Sprintf(
				"conflict: another live node uses the name %q (boot %d, %s): give one of them a name of its own",
				e.Member.Name, e.Member.Boot, e.Member.Addr)})
		}
	}
}

// announce gossips the own facts whenever they change, until the List ends.
func (l *List) announce() {
	for {
		select {
		case <-l.news:
			l.update()
		case <-l.ctx.Done():
			return
		}
		select {
		case <-time.After(announceEvery):
		case <-l.ctx.Done():
			return
		}
	}
}

// update hands the own facts to memberlist, which goes on to gossip them. It does not
// wait for that: an error says only that nothing was sent yet.
func (l *List) update() {
	l.announcing <- struct{}{}
	defer func() { <-l.announcing }()
	l.ml.UpdateNode(time.Nanosecond)
}

func (l *List) hasNews() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

func (l *List) ownMeta() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own.append(nil)
}

func (l *List) cluster() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.own.note.Cluster
}

func (l *List) setSeeds(found []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seeds = found
}

func (l *List) alone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roster.others() == 0
}

func (l *List) at(addr netip.AddrPort) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roster.at(addr)
}

func (l *List) lost() (netip.AddrPort, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roster.lost(time.Now())
}
