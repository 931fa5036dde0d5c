// Package nodetest runs whole clusters inside a test: real nodes with all their
// rooms over an in-memory network and in-memory disks, which can be cut, crashed and
// brought back.
//
// Inside a testing/synctest bubble time is fake: a cluster forms, loses its leader
// and elects another within milliseconds of real time.
//
//	synctest.Test(t, func(t *testing.T) {
//		c := nodetest.New(t, 3)
//		h, err := c.Node(0).Mutex("m").Lock(ctx)
//		...
//	})
package nodetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/clatter-go/clatter/internal/seam"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/transport/memnet"
)

// Cluster is a set of nodes on one network. Its methods are for one goroutine.
type Cluster struct {
	t     testing.TB
	net   *memnet.Net
	nodes []*node.Node
	cfgs  []node.Config
	disks []*vfs.Mem
}

// Option changes a Cluster before it starts.
type Option func(*settings)

type settings struct {
	seed uint64
	tune []func(i int, c *node.Config)
}

// Seed sets the seed of the network's misfortunes. Default 1.
func Seed(seed uint64) Option { return func(s *settings) { s.seed = seed } }

// Configure changes the configuration of each node before it starts.
func Configure(f func(i int, c *node.Config)) Option {
	return func(s *settings) { s.tune = append(s.tune, f) }
}

// New starts n nodes named n0, n1, ... that found one cluster together, and
// returns when each is ready. They are closed when the test ends.
func New(t testing.TB, n int, opts ...Option) *Cluster {
	t.Helper()
	c := laid(t, n, opts...)
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	c.start(all...)
	return c
}

// laid is a cluster of which nothing runs yet.
func laid(t testing.TB, n int, opts ...Option) *Cluster {
	s := settings{seed: 1}
	for _, o := range opts {
		o(&s)
	}
	c := &Cluster{t: t, net: memnet.New(s.seed), nodes: make([]*node.Node, n)}
	c.net.SetAll(memnet.Rule{Delay: latency})
	var addrs []string
	for i := range n {
		addrs = append(addrs, addr(i))
	}
	for i := range n {
		cfg := node.Config{
			Name: fmt.Sprintf("n%d", i), Cluster: "nodetest", Dir: "/data", Listen: addrs[i], Join: addrs, Expect: n,
			Secret: "nodetest, in memory only", Logger: slog.New(slog.DiscardHandler),
		}
		for _, f := range s.tune {
			f(i, &cfg)
		}
		c.cfgs, c.disks = append(c.cfgs, cfg), append(c.disks, vfs.NewMem())
	}
	t.Cleanup(c.close)
	return c
}

// Single starts one node alone, without a socket or a file.
func Single(t testing.TB) *node.Node {
	t.Helper()
	return New(t, 1, Configure(func(_ int, c *node.Config) { c.Dir = "" })).Node(0)
}

// latency keeps the network from being perfect. QUIC ignores a round trip of no time
// at all, and paces for one of 100 ms instead: half a megabyte a second.
const latency = 50 * time.Microsecond

func addr(i int) string { return fmt.Sprintf("127.0.0.%d:7946", i+1) }

// patience is how long New, Restart and WaitLeader wait; inside a bubble it is fake time.
const patience = time.Minute

func (c *Cluster) start(which ...int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, len(c.cfgs))
	for _, i := range which {
		wg.Go(func() { errs[i] = c.start1(ctx, i) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			c.t.Fatalf("nodetest: n%d: %v", i, err)
		}
	}
}

func (c *Cluster) start1(ctx context.Context, i int) error {
	n, err := c.launch(ctx, i)
	if err != nil {
		return err
	}
	c.nodes[i] = n
	return n.Ready(ctx)
}

func (c *Cluster) launch(ctx context.Context, i int) (*node.Node, error) {
	env := seam.Env{FS: c.disks[i], Listen: func(addr string) (net.PacketConn, error) { return c.net.Listen(addr) }}
	return node.Start(seam.With(ctx, env), c.cfgs[i])
}

// Node returns node i, or nil while it is down.
func (c *Cluster) Node(i int) *node.Node { return c.nodes[i] }

// Network is the network under the cluster, for loss, delay and the like.
func (c *Cluster) Network() *memnet.Net { return c.net }

// Partition cuts the nodes into groups that do not hear each other. It replaces an earlier one.
func (c *Cluster) Partition(groups ...[]int) {
	var all [][]string
	for _, g := range groups {
		var names []string
		for _, i := range g {
			names = append(names, addr(i))
		}
		all = append(all, names)
	}
	c.net.Partition(all...)
}

// Isolate cuts node i off from all others.
func (c *Cluster) Isolate(i int) { c.net.Isolate(addr(i)) }

// OneWay cuts what node from says to node to, and only that.
func (c *Cluster) OneWay(from, to int) { c.net.OneWay(addr(from), addr(to)) }

// Heal lifts every cut.
func (c *Cluster) Heal() { c.net.Heal() }

// Crash stops node i as a loss of power would: no word to the others, and what it
// had not synced to its disk is gone.
func (c *Cluster) Crash(i int) {
	c.t.Helper()
	n := c.nodes[i]
	c.nodes[i] = nil
	c.net.Isolate(addr(i)) // not a word gets out
	if err := n.Close(); err != nil {
		c.t.Errorf("nodetest: close n%d: %v", i, err)
	}
	c.disks[i].Crash()
}

// Restart starts node i again on its disk and waits until it is ready.
func (c *Cluster) Restart(i int) {
	c.t.Helper()
	c.net.Rejoin(addr(i))
	c.start(i)
}

// WaitLeader returns the name of the raft leader, once a node says that it leads.
func (c *Cluster) WaitLeader(ctx context.Context) string {
	c.t.Helper()
	for {
		for _, n := range c.nodes {
			if n == nil {
				continue
			}
			if s, err := n.Status(ctx); err == nil && s.Leader == n.Name() {
				return n.Name()
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			c.t.Fatalf("nodetest: no node leads: %v", context.Cause(ctx))
		}
	}
}

func (c *Cluster) close() {
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		if n != nil {
			wg.Go(func() {
				if err := n.Close(); err != nil {
					c.t.Errorf("nodetest: close n%d: %v", i, err)
				}
			})
		}
	}
	wg.Wait()
	if fakeTime() {
		time.Sleep(time.Minute) // timers of the libraries below must end before the bubble does
	}
}

// fakeTime reports whether this runs inside a bubble, whose time begins in 2000.
func fakeTime() bool { return time.Now().Year() < 2020 }
