package membership

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport/memnet"
)

// churn is a group of nodes and the random misfortunes that befall it.
type churn struct {
	t     *testing.T
	mem   *memnet.Net
	rng   *rand.Rand
	nodes []*testNode
	down  []bool
	past  []*testNode // ended starts, whose watchers have stories too
}

// step does one thing that happens to clusters, then lets up to 20 s pass.
func (c *churn) step() {
	i := c.rng.IntN(len(c.nodes))
	switch n := c.nodes[i]; c.rng.IntN(6) {
	case 0: // crash
		if !c.down[i] {
			n.crash()
			c.down[i] = true
		}
	case 1: // leave
		if !c.down[i] {
			require.NoError(c.t, n.Leave(c.t.Context()))
			n.stop()
			c.down[i] = true
		}
	case 2, 3: // restart, after a pause or at once
		if !c.down[i] {
			n.crash()
		}
		c.up(i)
	case 4: // split at random
		var sides [2][]string
		for k := range c.nodes {
			side := c.rng.IntN(2)
			sides[side] = append(sides[side], ip(k))
		}
		c.mem.Partition(sides[0], sides[1])
	case 5:
		c.mem.Heal()
	}
	time.Sleep(time.Duration(c.rng.Int64N(int64(20 * time.Second))))
	synctest.Wait()
}

func (c *churn) up(i int) {
	c.past = append(c.past, c.nodes[i])
	c.nodes[i] = c.nodes[i].again(c.mem)
	c.down[i] = false
}

// TestWatchersAgreeThatMembersComeAndGoByTurnsUnderChurn lets random crashes, leaves,
// restarts and splits happen on a lossy network and checks every watcher's story (M1),
// and that all see all once it is over.
func TestWatchersAgreeThatMembersComeAndGoByTurnsUnderChurn(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T, mem *memnet.Net) {
				c := &churn{t: t, mem: mem, rng: rand.New(rand.NewPCG(seed, 1))}
				mem.SetAll(memnet.Rule{Drop: 0.05, Dup: 0.01, Delay: time.Millisecond, Jitter: 2 * time.Millisecond})
				c.nodes = group(t, mem, 5, seedsOf(2))
				c.down = make([]bool, len(c.nodes))
				for range 25 {
					c.step()
				}
				mem.Heal()
				for i := range c.nodes {
					if c.down[i] {
						c.up(i)
					}
				}
				formed(t, 2*time.Minute, c.nodes...)
				time.Sleep(time.Minute)
				stopAll(c.nodes...)
				for _, n := range slices.Concat(c.past, c.nodes) {
					requireAlternation(t, n)
				}
			})
		})
	}
}

// requireAlternation checks one watcher's story, and that its boots only grow.
func requireAlternation(t *testing.T, n *testNode) {
	t.Helper()
	seen, boots := alternation{}, map[string]uint64{}
	for _, e := range n.events("") {
		require.NoError(t, seen.see(e.Event), "%s#%d saw %v", n.cfg.name, n.cfg.boot, n.events(e.Member.Name))
		require.NotEqual(t, Conflict, e.Kind, "no name was copied")
		require.GreaterOrEqual(t, e.Member.Boot, boots[e.Member.Name])
		boots[e.Member.Name] = max(boots[e.Member.Name], e.Member.Boot)
	}
}
