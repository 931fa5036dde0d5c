package membership

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
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
	wrap   func(*transport.Transport) wire // stands between the transport and the list
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
	var w wire = tr
	if c.wrap != nil {
		w = c.wrap(tr)
	}
	l, err := start(t.Context(), c.Config, w)
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
