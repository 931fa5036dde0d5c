package transport

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport/memnet"
)

func TestStrangersAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		strange func(*Config)
		dial    string
	}{
		"other secret":  {func(c *Config) { c.Secrets = [][]byte{secretB} }, "b"},
		"other cluster": {func(c *Config) { c.Cluster = "other" }, "b"},
		"other name":    {func(*Config) {}, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net, book := memnet.New(1), &pages{}
				b := mem(t, net, "b", 1, "10.0.0.2:7000", book)
				b.Handle(ClassCommand, func(context.Context, Peer, *Stream) { t.Error("a handler ran") })
				conn, err := net.Listen("10.0.0.1:7000")
				require.NoError(t, err)
				cfg := config(conn, "a", 1)
				c.strange(&cfg)
				a := start(t, cfg, book)
				book.set(Peer{Name: c.dial, Addr: b.Self().Addr})
				_, err = a.Open(within(t, 10*time.Second), c.dial, ClassCommand)
				require.ErrorIs(t, err, ErrIdentity)
				var down *PeerDownError
				require.ErrorAs(t, err, &down)
				_, err = a.Call(within(t, 10*time.Second), c.dial, "x", nil)
				require.True(t, Unsent(err))
				time.Sleep(time.Second)
				require.Zero(t, count(b))
			})
		})
	}
}

func TestOldAndNewSecretMeetDuringRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, book := memnet.New(1), &pages{}
		var nodes [2]*Transport
		for i, secrets := range [][][]byte{{secretA, secretB}, {secretB, secretA}} {
			conn, err := net.Listen(fmt.Sprintf("10.0.0.%d:7000", i+1))
			require.NoError(t, err)
			cfg := config(conn, string(rune('a'+i)), 1)
			cfg.Secrets = secrets
			nodes[i] = start(t, cfg, book)
			nodes[i].Handle(ClassCommand, echo)
		}
		got, err := ask(within(t, time.Second), nodes[0], "b", "hello")
		require.NoError(t, err)
		require.Equal(t, "hello", got)
		require.NoError(t, nodes[1].WritePacket([]byte("ping"), nodes[0].Self().Addr, "a#1"))
		require.Equal(t, "ping", string((<-nodes[0].Packets()).Data))
	})
}

func TestPeersUnknownAndSelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, _, book := memPair(t)
		_, err := a.Open(t.Context(), "nobody", ClassCommand)
		require.ErrorIs(t, err, ErrUnknownPeer)
		_, err = a.Open(t.Context(), "a", ClassCommand)
		require.ErrorIs(t, err, ErrSelf)
		_, err = a.DialGossip(t.Context(), a.Self().Addr, "")
		require.ErrorIs(t, err, ErrSelf)
		book.set(Peer{Name: "alias", Addr: a.Self().Addr})
		_, err = a.Open(within(t, 10*time.Second), "alias", ClassCommand)
		require.ErrorIs(t, err, ErrIdentity)
	})
}

// events collects what a watcher is told.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(ev PeerEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	what := "down"
	if ev.Up {
		what = "up"
	}
	e.list = append(e.list, fmt.Sprintf("%s#%d %s", ev.Peer.Name, ev.Peer.Boot, what))
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.list...)
}

func TestNewerStartSupersedesTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, a, old, book := memPair(t)
		var seen events
		a.Watch(seen.add)
		a.Handle(ClassCommand, echo)
		old.Handle(ClassCommand, echo)
		s, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)

		fresh := mem(t, net, "b", 2, "10.0.0.3:7000", book)
		_, err = ask(within(t, time.Second), fresh, "a", "here I am")
		require.NoError(t, err)
		_, _, err = s.ReadFrame()
		require.Error(t, err, "the stream to the old start has ended")
		time.Sleep(time.Second)
		require.Equal(t, []string{"b#1 up", "b#1 down", "b#2 up"}, seen.all())

		_, err = ask(within(t, 10*time.Second), old, "a", "and I?")
		require.ErrorIs(t, err, ErrStale)
		require.Equal(t, []string{"b#1 up", "b#1 down", "b#2 up"}, seen.all())
	})
}

func TestBookOfANewerStartIsNotAnsweredByTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, book := memPair(t)
		b.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), a, "b", "x")
		require.NoError(t, err)
		book.set(Peer{Name: "b", Boot: 2, Addr: b.Self().Addr})
		_, err = ask(within(t, 10*time.Second), a, "b", "x")
		require.ErrorIs(t, err, ErrStale)
	})
}

// Both ends dial at the same moment and use what they get at once: every stream must
// be served to its end, and one connection remain.
func TestSimultaneousDialsLoseNothing(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := newRace(t, memnet.Rule{Delay: time.Millisecond, Jitter: time.Duration(seed) * time.Millisecond}, seed)
			r.both(func(n *Transport, to *Transport) {
				r.work.Go(func() { drip(t, n, to.cfg.Name) })
				for k := range 30 {
					r.work.Go(func() { post(t, n, to.cfg.Name, k) })
				}
			})
			r.finish(30, "post")
		})
	}
}

// The same with streams that their opener writes, closes and forgets, over links that
// lose packets: only the counts of opened streams tell that some are still to come.
func TestSimultaneousDialsLoseNothingThatWasCast(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := newRace(t, memnet.Rule{Delay: time.Millisecond, Jitter: 3 * time.Millisecond, Drop: 0.2}, seed)
			r.both(func(n *Transport, to *Transport) {
				for k := range 8 { // as many as a peer may have
					r.work.Go(func() { cast(t, n, to.Self().Addr, to.cfg.Name, k) })
				}
			})
			r.finish(8, "cast")
		})
	}
}

// What was cast is still on its way, in packets that are lost at first, while all that
// retires the connection gets through.
func TestRetiredConnectionWaitsForWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, a, b, book := memPair(t)
		a.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), b, "a", "dial")
		require.NoError(t, err)
		time.Sleep(time.Second)
		net.Set("10.0.0.1:7000", "10.0.0.2:7000", memnet.Rule{Delay: time.Millisecond, MTU: 600})
		c, err := a.DialGossip(t.Context(), book.m["b"].Addr, "b#1")
		require.NoError(t, err)
		_, err = c.Write(make([]byte, 1000))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		b.current("a", ctl).retire(connDuplicate)
		time.Sleep(20 * time.Millisecond)
		net.Set("10.0.0.1:7000", "10.0.0.2:7000", memnet.Rule{Delay: time.Millisecond})
		d := greeted(t, b)
		got, err := io.ReadAll(d)
		require.NoError(t, err)
		require.Len(t, got, 1000)
		require.NoError(t, d.Close())
		time.Sleep(time.Second)
		require.Zero(t, count(b))
	})
}

// race is two nodes that dial each other at once.
type race struct {
	t     *testing.T
	seed  uint64
	nodes [2]*Transport
	work  sync.WaitGroup
	got   sync.Map // of what was received
}

func newRace(t *testing.T, rule memnet.Rule, seed uint64) *race {
	net, book := memnet.New(seed), &pages{}
	net.SetAll(rule)
	r := &race{t: t, seed: seed}
	for i, name := range []string{"a", "b"} {
		r.nodes[i] = mem(t, net, name, 1, fmt.Sprintf("10.0.0.%d:7000", i+1), book)
		r.nodes[i].Handle(ClassCommand, echo)
		r.nodes[i].Handle(ClassWatch, func(_ context.Context, _ Peer, s *Stream) {
			if _, payload, err := s.ReadFrame(); err == nil {
				r.got.Store(string(payload), true)
			}
		})
		go collect(r.nodes[i], &r.got)
	}
	return r
}

func (r *race) both(f func(from, to *Transport)) {
	f(r.nodes[0], r.nodes[1])
	f(r.nodes[1], r.nodes[0])
}

// finish checks that the first n of a kind have arrived at both.
func (r *race) finish(n int, kind string) {
	r.work.Wait()
	time.Sleep(20 * time.Second) // a lost goodbye is noticed by the idle time
	for k := range n {
		for _, to := range []string{"a", "b"} {
			_, ok := r.got.Load(fmt.Sprintf("%s %s %d", kind, to, k))
			require.True(r.t, ok, "seed %d: %s %s %d was lost", r.seed, kind, to, k)
		}
	}
	for _, n := range r.nodes {
		require.Equal(r.t, 1, count(n), "seed %d: connections of %s", r.seed, n.cfg.Name)
	}
}

// count is how many connections n has, in use or not.
func count(n *Transport) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.links) + len(n.fresh)
}

// post sends one frame, closes and goes away.
func post(t *testing.T, n *Transport, to string, k int) {
	time.Sleep(time.Duration(k%10) * time.Millisecond)
	s, err := n.Open(t.Context(), to, ClassWatch)
	if err == nil {
		err = s.WriteFrames(appendFrame(nil, 1, fmt.Appendf(nil, "post %s %d", to, k)))
	}
	if err == nil {
		err = s.Close()
	}
	if err == nil {
		_, _, _ = s.ReadFrame() // the handler's end
	}
	if err != nil {
		t.Errorf("post %d to %s: %v", k, to, err)
	}
}

// cast writes to a gossip stream and closes it, all in one go.
func cast(t *testing.T, n *Transport, at netip.AddrPort, to string, k int) {
	c, err := n.DialGossip(t.Context(), at, to+"#1")
	if err == nil {
		_, err = fmt.Fprintf(c, "cast %s %d", to, k)
	}
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		t.Errorf("cast %d to %s: %v", k, to, err)
	}
}

// collect takes what is cast to n, slowly.
func collect(n *Transport, got *sync.Map) {
	for c := range n.GossipConns() {
		go func() {
			time.Sleep(5 * time.Millisecond)
			b, _ := io.ReadAll(c)
			got.Store(string(b), true)
			_ = c.Close()
		}()
	}
}

// drip uses one stream for a second.
func drip(t *testing.T, n *Transport, to string) {
	s, err := n.Open(t.Context(), to, ClassCommand)
	if err != nil {
		t.Errorf("drip to %s: %v", to, err)
		return
	}
	for range 50 {
		time.Sleep(20 * time.Millisecond)
		if err := s.WriteFrames(appendFrame(nil, 1, []byte("x"))); err != nil {
			t.Errorf("drip to %s: %v", to, err)
			return
		}
		if _, _, err := s.ReadFrame(); err != nil {
			t.Errorf("drip from %s: %v", to, err)
			return
		}
	}
	s.Cancel()
}

func TestDialsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassWatch, echo)
		var work sync.WaitGroup
		for range 100 {
			work.Go(func() {
				s, err := a.Open(t.Context(), "b", ClassWatch)
				if err != nil {
					t.Error(err)
					return
				}
				s.Cancel()
			})
		}
		work.Wait()
		require.Equal(t, 1, count(a))
		b.door.mu.Lock()
		defer b.door.mu.Unlock()
		require.Equal(t, 1, b.door.all)
	})
}

func TestDeadPeerIsDialedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, book := memnet.New(1), &pages{}
		a := mem(t, net, "a", 1, "10.0.0.1:7000", book)
		book.set(Peer{Name: "b", Addr: netip.MustParseAddrPort("10.0.0.2:7000")})
		ctx := within(t, time.Minute)
		tries := 0
		for ctx.Err() == nil {
			_, err := a.Open(ctx, "b", ClassCommand)
			require.Error(t, err)
			tries++
		}
		require.Greater(t, tries, 7)
		require.Less(t, tries, 20)

		// It comes up and connects by itself: who waits in a pause is served at once.
		b := mem(t, net, "b", 1, "10.0.0.2:7000", book)
		b.Handle(ClassCommand, echo)
		a.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), b, "a", "here")
		require.NoError(t, err)
		_, err = ask(within(t, 100*time.Millisecond), a, "b", "good")
		require.NoError(t, err)
	})
}

func TestNewAddressIsDialedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, book := memnet.New(1), &pages{}
		a := mem(t, net, "a", 1, "10.0.0.1:7000", book)
		book.set(Peer{Name: "b", Addr: netip.MustParseAddrPort("10.0.0.9:7000")})
		for range 6 {
			_, err := a.Open(t.Context(), "b", ClassCommand)
			require.Error(t, err)
		}
		b := mem(t, net, "b", 1, "10.0.0.2:7000", book)
		b.Handle(ClassCommand, echo)
		_, err := ask(within(t, 100*time.Millisecond), a, "b", "found")
		require.NoError(t, err)
	})
}

func TestSilentPeerIsDroppedAndMetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, a, b, _ := memPair(t)
		b.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), a, "b", "x")
		require.NoError(t, err)
		var seen events
		a.Watch(seen.add)
		time.Sleep(20 * time.Second)
		require.Equal(t, []string{"b#1 up"}, seen.all(), "pings keep the connection")
		net.Isolate("10.0.0.2:7000")
		time.Sleep(13 * time.Second)
		require.Equal(t, []string{"b#1 up", "b#1 down"}, seen.all())
		net.Heal()
		_, err = ask(within(t, 10*time.Second), a, "b", "x")
		require.NoError(t, err)
	})
}

func TestRestartIsNoticedByThePing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, a, b, book := memPair(t)
		b.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), a, "b", "x")
		require.NoError(t, err)
		var seen events
		a.Watch(seen.add)
		net.Isolate("10.0.0.2:7000") // nothing of its end gets out: a crash
		require.NoError(t, b.Close())
		net.Heal()
		mem(t, net, "b", 2, "10.0.0.2:7000", book)
		time.Sleep(4 * time.Second)
		require.Equal(t, []string{"b#1 up", "b#1 down"}, seen.all())
	})
}

func TestUnusedConnectionEndsAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("echo", func(_ context.Context, _ Peer, req []byte) ([]byte, error) { return req, nil })
		var causes []error
		a.Watch(func(e PeerEvent) { causes = append(causes, e.Cause) })
		for range 2 {
			_, err := a.Call(within(t, time.Second), "b", "echo", nil)
			require.NoError(t, err)
			time.Sleep(50 * time.Second)
			require.Equal(t, 1, count(a))
			time.Sleep(50 * time.Second)
			require.Zero(t, count(a))
			require.Zero(t, count(b))
		}
		synctest.Wait()
		require.Equal(t, []error{nil, nil, nil, nil}, causes)
	})
}

func TestCloseTellsThePeerAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassCommand, echo)
		s, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
		_, _, err = s.ReadFrame()
		require.Error(t, err)
		require.Less(t, time.Since(began), 10*time.Millisecond)
		_, err = b.Open(t.Context(), "a", ClassCommand)
		require.ErrorIs(t, err, ErrClosed)
		_, err = b.Call(t.Context(), "a", "x", nil)
		require.ErrorIs(t, err, ErrClosed)
		require.True(t, Unsent(err))
		_, ok := <-b.Packets()
		require.False(t, ok)
		_, ok = <-b.GossipConns()
		require.False(t, ok)
	})
}

func TestCloseWaitsForHandlersAndDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, book := memPair(t)
		left := false
		b.Handle(ClassCommand, func(ctx context.Context, _ Peer, _ *Stream) {
			<-ctx.Done()
			time.Sleep(time.Second)
			left = true
		})
		_, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)
		book.set(Peer{Name: "dead", Addr: netip.MustParseAddrPort("10.0.0.9:7000")})
		go func() { _, _ = b.Open(context.Background(), "dead", ClassCommand) }()
		time.Sleep(10 * time.Millisecond)
		require.NoError(t, b.Close())
		require.True(t, left)
	})
}

func TestConfigErrorsAreAllTold(t *testing.T) {
	_, err := New(Config{Conn: loopback(t), Name: "a/b", Secrets: [][]byte{[]byte("short")}})
	for _, part := range []string{"Advertise", "Name", "Cluster", "Secrets[0]"} {
		require.ErrorContains(t, err, part)
	}
}
