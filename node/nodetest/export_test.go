package nodetest

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/node"
)

// Disk is the disk of node i, to break it.
func (c *Cluster) Disk(i int) *vfs.Mem { return c.disks[i] }

// Wipe gives node i an empty disk.
func (c *Cluster) Wipe(i int) { c.disks[i] = vfs.NewMem() }

// Reconfigure changes what node i starts with next time.
func (c *Cluster) Reconfigure(i int, f func(*node.Config)) { f(&c.cfgs[i]) }

// PowerLoss ends node i in the middle of things: not even closing writes, and each
// unsynced sector survives or not as rng says.
func (c *Cluster) PowerLoss(i int, rng *rand.Rand) {
	c.disks[i].HaltAt(0)
	n := c.nodes[i]
	c.nodes[i] = nil
	c.net.Isolate(c.cfgs[i].Listen)
	_ = n.Close() // it cannot write any more, and says so
	c.disks[i].Tear(rng)
}

// Kill closes node i without a word to the others.
func (c *Cluster) Kill(i int) {
	n := c.nodes[i]
	c.nodes[i] = nil
	c.net.Isolate(c.cfgs[i].Listen)
	if err := n.Close(); err != nil {
		c.t.Errorf("nodetest: close n%d: %v", i, err)
	}
}

// Begin starts node i and does not wait until it is ready.
func (c *Cluster) Begin(ctx context.Context, i int) error {
	c.net.Rejoin(c.cfgs[i].Listen)
	n, err := c.launch(ctx, i)
	if err == nil {
		c.nodes[i] = n
	}
	return err
}

// Empty is a cluster of which nothing runs yet.
func Empty(t testing.TB, n int, opts ...Option) *Cluster { return laid(t, n, opts...) }
