package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/transport"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = bytes.Repeat([]byte("s"), 32)

// testNode is a node with the real transport over a memnet.
type testNode struct {
	*List
	t       *testing.T
	conn    net.PacketConn
	net     *transport.Transport
	cfg     nodeConfig
	watched sync.WaitGroup

	mu  sync.Mutex // guards log
	log []told
}

// told is an event and when the watcher got it.
type told struct {
	Event
	at time.Time
}

type nodeConfig struct {
	Config
	name   string
	addr   string
	boot   uint64
	secret []byte
	book   bool
}

// ip is the address of the i-th node.
func ip(i int) string { return fmt.Sprintf("10.0.%d.%d:7000", i/250, i%250+1) }

// seedsOf are the addresses of the first n nodes.
func seedsOf(n int) (out []string) {
	for i := range n {
		out = append(out, ip(i))
	}
	return out
}

// bring starts a node; change alters its configuration first.
func bring(t *testing.T, n *memnet.Net, i int, join []string, change ...func(*nodeConfig)) *testNode {
	t.Helper()
	c := nodeConfig{name: fmt.Sprintf("n%02d", i), addr: ip(i), boot: 1, secret: secret}
	c.Config = Config{Join: join, Logger: slog.New(slog.DiscardHandler), Seed: uint64(i + 1)}
	for _, f := range change {
		f(&c)
	}
	return c.start(t, n)
}

func (c nodeConfig) start(t *testing.T, n *memnet.Net) *testNode {
	t.Helper()
	pc, err := n.Listen(c.addr)
	require.NoError(t, err)
	return c.startOn(t, pc)
}

func (c nodeConfig) startOn(t *testing.T, pc net.PacketConn) *testNode {
	t.Helper()
	tr, err := transport.New(transport.Config{
		Conn: pc, Advertise: pc.LocalAddr().(*net.UDPAddr).AddrPort(),
		Name: c.name, Boot: c.boot, Cluster: "test", Secrets: [][]byte{c.secret}, Logger: c.Logger,
	})
	require.NoError(t, err)
	c.Transport = tr
	l, err := Start(t.Context(), c.Config)
	require.NoError(t, err)
	tr.Use(l)
	node := &testNode{List: l, t: t, conn: pc, net: tr, cfg: c}
	node.watched.Go(func() {
		for e, err := range l.Events(context.Background()) {
			if err != nil {
				return
			}
			node.mu.Lock()
			node.log = append(node.log, told{e, time.Now()})
			node.mu.Unlock()
		}
	})
	return node
}

// crash ends the node as a power cut would: nothing is sent any more.
func (n *testNode) crash() {
	n.conn.Close()
	n.stop()
}

func (n *testNode) stop() {
	require.NoError(n.t, n.Close())
	n.net.Close()
	n.watched.Wait()
}

// again starts the node anew at its address.
func (n *testNode) again(mem *memnet.Net) *testNode {
	c := n.cfg
	c.boot++
	return c.start(n.t, mem)
}

// events are those that the node was told of name, or of all for "".
func (n *testNode) events(name string) (out []told) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, e := range n.log {
		if name == "" || e.Member.Name == name {
			out = append(out, e)
		}
	}
	return out
}

func (n *testNode) kinds(name string) (out []Kind) {
	for _, e := range n.events(name) {
		out = append(out, e.Kind)
	}
	return out
}

// sees says whether the members in sight are exactly these.
func (n *testNode) sees(names ...string) bool {
	var in []string
	for m := range n.Members() {
		if m.State == StateAlive {
			in = append(in, m.Name)
		}
	}
	return slices.Equal(in, names)
}

// eventually waits until ok, checking every 10 ms; it returns how long that took.
func eventually(t *testing.T, limit time.Duration, ok func() bool, what string) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		require.Less(t, time.Since(start), limit, what)
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// formed waits until all see all.
func formed(t *testing.T, limit time.Duration, nodes ...*testNode) time.Duration {
	t.Helper()
	var names []string
	for _, n := range nodes {
		names = append(names, n.cfg.name)
	}
	slices.Sort(names)
	return eventually(t, limit, func() bool {
		return !slices.ContainsFunc(nodes, func(n *testNode) bool { return !n.sees(names...) })
	}, "all see all")
}

// group starts n nodes with the given seeds and waits until all see all.
func group(t *testing.T, mem *memnet.Net, n int, join []string, change ...func(*nodeConfig)) []*testNode {
	t.Helper()
	var nodes []*testNode
	for i := range n {
		nodes = append(nodes, bring(t, mem, i, join, change...))
	}
	formed(t, 5*time.Second, nodes...)
	return nodes
}

// inBubble runs f over a network with the latency of a LAN and drains the timers that
// memberlist and QUIC leave running: what does not end by itself fails the bubble.
func inBubble(t *testing.T, f func(t *testing.T, mem *memnet.Net)) {
	synctest.Test(t, func(t *testing.T) {
		mem := memnet.New(1)
		mem.SetAll(memnet.Rule{Delay: 200 * time.Microsecond, Jitter: 200 * time.Microsecond})
		f(t, mem)
		time.Sleep(time.Minute)
	})
}

func stopAll(nodes ...*testNode) {
	for _, n := range nodes {
		n.stop()
	}
}

func TestNodesThatNameOneAnotherFormAtOnce(t *testing.T) {
	for _, n := range []int{3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, mem *memnet.Net) {
				nodes := make([]*testNode, n)
				var wg sync.WaitGroup
				start := time.Now()
				for i := range n {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 7 * time.Millisecond) // processes never start together
						nodes[i] = bring(t, mem, i, seedsOf(n))
					})
				}
				wg.Wait()
				formed(t, time.Second, nodes...)
				t.Logf("%d nodes: %v", n, time.Since(start))
				require.Less(t, time.Since(start), 400*time.Millisecond)
				for _, node := range nodes {
					require.Len(t, node.Seeds(), n)
					require.Len(t, node.Peers(), n-1)
				}
				stopAll(nodes...)
			})
		})
	}
}

func TestOneSeedIsEnoughAlsoWhenItComesLast(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		second := bring(t, mem, 1, seedsOf(1))
		third := bring(t, mem, 2, seedsOf(1))
		time.Sleep(30 * time.Millisecond)
		seed := bring(t, mem, 0, seedsOf(1))
		t.Logf("after the seed: %v", formed(t, time.Second, seed, second, third))
		stopAll(seed, second, third)
	})
}

func TestACrashIsAFailureAndALeaveIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		start := time.Now()
		require.NoError(t, nodes[4].Leave(t.Context()))
		t.Logf("Leave of 5: %v", time.Since(start))
		nodes[4].stop()
		nodes[3].crash()
		took := eventually(t, 10*time.Second, func() bool {
			return nodes[0].sees("n00", "n01", "n02") && nodes[1].sees("n00", "n01", "n02") && nodes[2].sees("n00", "n01", "n02")
		}, "crash noticed")
		t.Logf("crash noticed by all after %v", took)
		synctest.Wait()
		for _, n := range nodes[:3] {
			require.Equal(t, []Kind{Joined, Leaving, Left}, n.kinds("n04"))
			require.Equal(t, []Kind{Joined, Failed}, n.kinds("n03"))
			_, _, known := n.Lookup("n04")
			require.False(t, known, "who left has no address")
			addr, boot, known := n.Lookup("n03")
			require.True(t, known, "who failed may still answer")
			require.Equal(t, netip.MustParseAddrPort(ip(3)), addr)
			require.EqualValues(t, 1, boot)
			require.Equal(t, StateFailed, slices.Collect(n.Members())[3].State)
		}
		stopAll(nodes[:3]...)
	})
}

func TestTheLastNodeLeavesWithoutWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		n := bring(t, mem, 0, nil)
		start := time.Now()
		require.NoError(t, n.Leave(t.Context()))
		require.NoError(t, n.Leave(t.Context()))
		require.Zero(t, time.Since(start))
		n.stop()
	})
}

func TestALeaveEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 2, seedsOf(2))
		cause := errors.New("hurry")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.ErrorIs(t, nodes[1].Leave(ctx), cause)
		done := make(chan error)
		go func() { done <- nodes[0].Leave(t.Context()) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, nodes[0].Close())
		require.ErrorIs(t, <-done, ErrClosed)
		stopAll(nodes...)
	})
}

func TestARestartAtTheSameAddressIsSeenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		nodes[4].crash()
		nodes[4] = nodes[4].again(mem)
		took := eventually(t, time.Second, func() bool {
			return !slices.ContainsFunc(nodes[:4], func(n *testNode) bool {
				_, boot, _ := n.Lookup("n04")
				return boot != 2
			})
		}, "new boot known")
		t.Logf("restart known to all after %v", took)
		time.Sleep(time.Minute) // the old boot is missed in silence
		for _, n := range nodes[:4] {
			require.Equal(t, []Kind{Joined, Restarted}, n.kinds("n04"))
		}
		formed(t, time.Second, nodes...)
		stopAll(nodes...)
	})
}

func TestARestartElsewhereIsSeenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		nodes[2].crash()
		nodes[2] = bring(t, mem, 7, seedsOf(3), func(c *nodeConfig) { c.name, c.boot = "n02", 2 })
		eventually(t, time.Second, func() bool {
			addr, _, _ := nodes[0].Lookup("n02")
			return addr == netip.MustParseAddrPort(ip(7))
		}, "new address known")
		stopAll(nodes...)
	})
}

func TestALongSplitHeals(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 6, seedsOf(1)) // the seed is on one side only
		mem.Partition(seedsOf(3), []string{ip(3), ip(4), ip(5)})
		eventually(t, 30*time.Second, func() bool {
			return nodes[0].sees("n00", "n01", "n02") && nodes[5].sees("n03", "n04", "n05")
		}, "split seen")
		time.Sleep(time.Minute) // gossip has forgotten the other side
		mem.Heal()
		t.Logf("healed after %v", formed(t, 15*time.Second, nodes...))
		stopAll(nodes...)
	})
}

func TestIslandsThatWereBornApartMeetThroughTheirSeeds(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		mem.Partition(seedsOf(2), []string{ip(2), ip(3)})
		var nodes []*testNode
		for i := range 4 {
			nodes = append(nodes, bring(t, mem, i, seedsOf(4)))
		}
		eventually(t, 5*time.Second, func() bool { return nodes[0].sees("n00", "n01") && nodes[3].sees("n02", "n03") }, "islands")
		mem.Heal()
		t.Logf("met after %v", formed(t, 15*time.Second, nodes...))
		stopAll(nodes...)
	})
}

func TestLossOfAFifthIsNoFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		mem.SetAll(memnet.Rule{Drop: 0.2, Dup: 0.01, Delay: 2 * time.Millisecond, Jitter: 5 * time.Millisecond})
		var nodes []*testNode
		for i := range 5 {
			nodes = append(nodes, bring(t, mem, i, seedsOf(5)))
		}
		formed(t, 10*time.Second, nodes...)
		time.Sleep(2 * time.Minute)
		for _, n := range nodes {
			for _, e := range n.events("") {
				require.NotEqual(t, Failed, e.Kind, "%v", e)
			}
		}
		stopAll(nodes...)
	})
}

func TestNotesReachAllBeforeLong(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		time.Sleep(time.Second)
		for term := range uint64(20) { // a burst, of which the last must not be lost
			nodes[0].Note(Note{Term: term, Leader: true, Voter: term == 19})
			time.Sleep(time.Millisecond)
		}
		took := eventually(t, time.Second, func() bool {
			return !slices.ContainsFunc(nodes[1:], func(n *testNode) bool { return n.Peers()[0].Note.Term != 19 })
		}, "last note known")
		t.Logf("last note of a burst known to all after %v", took)
		require.Less(t, took, 300*time.Millisecond)
		synctest.Wait()
		require.Equal(t, []Kind{Joined, Updated}, nodes[4].kinds("n00"), "only a visible change is an event")
		stopAll(nodes...)
	})
}

func TestChangedWakesWhoWaitsForPeers(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		first := bring(t, mem, 0, nil)
		changed := first.Changed()
		second := bring(t, mem, 1, seedsOf(1), func(c *nodeConfig) {
			c.Zone, c.Labels = "east", map[string]string{"disk": "fast"}
		})
		<-changed
		m := slices.Collect(first.Members())[1]
		require.Equal(t, "east", m.Zone)
		require.Equal(t, map[string]string{"disk": "fast"}, m.Labels)
		changed = first.Changed()
		first.stop()
		<-changed
		second.stop()
	})
}

func TestNothingIsToldAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		nodes[1].crash()
		time.Sleep(2 * time.Second) // suspected: memberlist will declare it dead later
		require.NoError(t, nodes[0].Close())
		before := len(nodes[0].events(""))
		changed := nodes[0].Changed()
		time.Sleep(30 * time.Second)
		require.Len(t, nodes[0].events(""), before)
		require.Equal(t, changed, nodes[0].Changed())
		for _, err := range nodes[0].Events(t.Context()) {
			require.ErrorIs(t, err, ErrClosed)
		}
		stopAll(nodes[0], nodes[2])
	})
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		n := bring(t, mem, 0, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		cause := errors.New("enough")
		var kinds []Kind
		for e, err := range n.Events(ctx) {
			if err != nil {
				require.ErrorIs(t, err, cause)
				break
			}
			if kinds = append(kinds, e.Kind); e.Kind == Synced {
				cancel(cause)
			}
		}
		require.Equal(t, []Kind{Joined, Synced}, kinds)
		n.stop()
	})
}

func TestAStrangerNeverBecomesAMember(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 2, seedsOf(2))
		stranger := bring(t, mem, 2, seedsOf(2), func(c *nodeConfig) { c.secret = bytes.Repeat([]byte("x"), 32) })
		time.Sleep(time.Minute)
		require.True(t, stranger.sees("n02"))
		for _, n := range nodes {
			require.Empty(t, n.events("n02"))
		}
		stopAll(append(nodes, stranger)...)
	})
}

func TestTwoFoundedClustersDoNotMerge(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		a, b := bring(t, mem, 0, nil), bring(t, mem, 1, nil)
		a.Note(Note{Cluster: 1})
		b.Note(Note{Cluster: 2})
		time.Sleep(time.Second)
		c := bring(t, mem, 2, seedsOf(2), func(c *nodeConfig) { c.Zone = "new" })
		time.Sleep(time.Minute)
		require.Empty(t, a.events("n01"))
		require.Empty(t, b.events("n00"))
		require.NotEmpty(t, a.events("n02"), "a node of no cluster is welcome")
		stopAll(a, b, c)
	})
}

func TestACopiedNameIsAConflictAndTheNewestBootIsShown(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		twin := bring(t, mem, 5, seedsOf(3), func(c *nodeConfig) { c.name, c.boot = "n01", 9 })
		time.Sleep(3 * time.Minute)
		_, boot, _ := nodes[0].Lookup("n01")
		require.EqualValues(t, 9, boot)
		require.Equal(t, []Kind{Joined, Restarted, Conflict}, nodes[0].kinds("n01"))
		require.Equal(t, []Kind{Joined, Conflict}, nodes[1].kinds("n01"), "the older one learns of it too")
		stopAll(append(nodes, twin)...)
	})
}
