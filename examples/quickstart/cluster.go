package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus/election"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/membership"
	"github.com/clatter-go/clatter/node"
)

// secret is the shared secret of this demonstration. A real one is 32 random bytes
// that are not in the source: see Config.SecretFile.
const secret = "quickstart: only for this demonstration"

type cluster struct {
	dir   string
	nodes []*node.Node // nil: killed
	watch sync.WaitGroup
	seen  context.CancelFunc

	fence  lock.Fence
	hold   *lock.Hold
	lead   *election.Leadership
	holder string // name of the node that has both
	dead   string // name of the node that was killed
}

// form starts the nodes, which know only one another's addresses and the secret.
func form(ctx context.Context, size int) (c *cluster, err error) {
	dir, err := os.MkdirTemp("", "clatter-quickstart-")
	if err != nil {
		return nil, err
	}
	watching, stop := context.WithCancel(context.Background())
	c = &cluster{dir: dir, nodes: make([]*node.Node, size), seen: stop, fence: lock.NewMemoryFence()}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	addrs, err := freeAddrs(size)
	if err != nil {
		return nil, err
	}
	say("starting %d nodes on %v", size, addrs)
	var wg sync.WaitGroup
	errs := make([]error, size)
	for i := range c.nodes {
		wg.Go(func() {
			c.nodes[i], errs[i] = node.Start(ctx, node.Config{
				Name: fmt.Sprintf("n%d", i+1), Cluster: "quickstart", Dir: filepath.Join(dir, fmt.Sprint(i+1)),
				Listen: addrs[i], Join: addrs, Expect: size, Secret: secret, SessionTTL: 3 * time.Second,
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	first := c.nodes[0]
	c.watch.Go(func() { tellWhoJoins(watching, first) })
	for _, n := range c.nodes {
		if err := n.Ready(ctx); err != nil {
			return nil, fmt.Errorf("%s did not become ready: %w", n.Name(), err)
		}
	}
	s, err := c.status(ctx)
	if err != nil {
		return nil, err
	}
	say("%s founded the cluster with the votes of a majority of %d; %v vote, the others are clients; %d may fail", s.Founder, size, s.Voters, s.Tolerates)
	say("%s leads in term %d", s.Leader, s.Term)
	return c, nil
}

// tellWhoJoins prints what n hears by gossip.
func tellWhoJoins(ctx context.Context, n *node.Node) {
	for e, err := range n.Events(ctx) {
		if err != nil {
			return
		}
		switch e.Kind {
		case membership.Joined, membership.Failed, membership.Left:
			say("%s %v at %s", e.Member.Name, e.Kind, e.Member.Addr)
		}
	}
}

// status waits until a node knows the leader.
func (c *cluster) status(ctx context.Context) (node.Status, error) {
	for {
		for _, n := range c.nodes {
			if n == nil {
				continue
			}
			if s, err := n.Status(ctx); err == nil && s.Leader != "" && s.Leader != c.dead {
				return s, nil
			}
		}
		select {
		case <-ctx.Done():
			return node.Status{}, fmt.Errorf("no leader is known: %w", context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// client is a live node that is no voter, if there is one.
func (c *cluster) client(voters []string) *node.Node {
	i := slices.IndexFunc(c.nodes, func(n *node.Node) bool { return n != nil && !slices.Contains(voters, n.Name()) })
	if i < 0 {
		i = slices.IndexFunc(c.nodes, func(n *node.Node) bool { return n != nil })
	}
	return c.nodes[i]
}

func (c *cluster) named(name string) *node.Node {
	for _, n := range c.nodes {
		if n != nil && n.Name() == name {
			return n
		}
	}
	return nil
}

func (c *cluster) addrs() (all []string) {
	for _, n := range c.nodes {
		if n != nil {
			all = append(all, n.Addr())
		}
	}
	return all
}

func (c *cluster) close() {
	c.seen()
	c.watch.Wait()
	var wg sync.WaitGroup
	for _, n := range c.nodes {
		if n != nil {
			wg.Go(func() { n.Close() })
		}
	}
	wg.Wait()
	os.RemoveAll(c.dir)
}

// freeAddrs returns loopback addresses that nobody uses at this moment.
func freeAddrs(n int) (addrs []string, err error) {
	for range n {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer conn.Close() // held until all are chosen, so that none comes twice
		addrs = append(addrs, conn.LocalAddr().String())
	}
	return addrs, nil
}
