package nodetest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/transport/memnet"
)

// MB-10, F1: however five nodes meet for the first time, one cluster comes of it.
func TestFiveNodesThatMeetBadlyFoundOneCluster(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			c := nodetest.Empty(t, 5, nodetest.Seed(seed+1))
			c.Network().SetAll(memnet.Rule{Drop: 0.1, Dup: 0.05, Delay: time.Millisecond, Jitter: 30 * time.Millisecond})
			order := rng.Perm(5)
			cut := 1 + rng.IntN(4)
			c.Partition(order[:cut], order[cut:])
			for _, i := range rng.Perm(5) {
				require.NoError(t, c.Begin(t.Context(), i))
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
			}
			time.Sleep(time.Duration(rng.IntN(15)) * time.Second)
			cut = 1 + rng.IntN(4)
			order = rng.Perm(5)
			c.Partition(order[:cut], order[cut:])
			time.Sleep(time.Duration(rng.IntN(15)) * time.Second)
			c.Heal()
			c.Network().SetAll(memnet.Rule{Delay: time.Millisecond})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for i := range 5 {
				require.NoError(t, c.Node(i).Ready(ctx), "n%d", i)
			}
			_, err := c.Node(0).KV("").Put(ctx, "k", []byte("one"))
			require.NoError(t, err)
			first, err := c.Node(0).Status(ctx)
			require.NoError(t, err)
			for i := range 5 {
				e, err := c.Node(i).KV("").Get(ctx, "k")
				require.NoError(t, err, "n%d", i)
				require.Equal(t, "one", string(e.Value))
				s, err := c.Node(i).Status(ctx)
				require.NoError(t, err)
				require.Equal(t, first.Voters, s.Voters)
			}
		})
	}
}

// Protocol 7a: two late nodes of the founders' configuration, cut off, found nothing.
func TestLateNodesOfTheSameConfigurationFoundNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.Empty(t, 5, nodetest.Configure(func(_ int, c *node.Config) { c.Expect = 3 }))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i := range 3 {
			require.NoError(t, c.Begin(t.Context(), i))
		}
		for i := range 3 {
			require.NoError(t, c.Node(i).Ready(ctx))
		}
		c.Partition([]int{0, 1, 2}, []int{3, 4})
		for i := 3; i < 5; i++ {
			require.NoError(t, c.Begin(t.Context(), i))
		}
		time.Sleep(30 * time.Second)
		for i := 3; i < 5; i++ {
			s, err := c.Node(i).Status(ctx)
			require.NoError(t, err)
			require.Empty(t, s.Voters)
		}
		c.Heal()
		_, err := c.Node(4).KV("").Put(ctx, "k", []byte("v"))
		require.NoError(t, err)
		e, err := c.Node(0).KV("").Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "v", string(e.Value))
	})
}

// P12, RF-31: all addresses are new after a restart.
func TestAClusterRestartsAtNewAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		_, err := c.Node(0).KV("").Put(t.Context(), "k", []byte("v"))
		require.NoError(t, err)
		for i := range 3 {
			c.Crash(i)
		}
		var at []string
		for i := range 3 {
			at = append(at, fmt.Sprintf("127.0.1.%d:8000", i+1))
		}
		var wg sync.WaitGroup
		for i := range 3 {
			c.Reconfigure(i, func(cfg *node.Config) { cfg.Listen, cfg.Join = at[i], at })
		}
		for i := range 3 {
			wg.Go(func() {
				if err := c.Begin(t.Context(), i); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for i := range 3 {
			e, err := c.Node(i).KV("").Get(ctx, "k")
			require.NoError(t, err)
			require.Equal(t, "v", string(e.Value))
		}
		// One by one, each at the former address of another.
		for i := range 3 {
			c.Crash(i)
			c.Reconfigure(i, func(cfg *node.Config) {
				cfg.Listen = fmt.Sprintf("127.0.0.%d:7946", i+1)
				cfg.Join = append([]string{cfg.Listen, "127.0.0.1:7946"}, at...)
			})
			require.NoError(t, c.Begin(t.Context(), i))
			_, err := c.Node(i).KV("").Put(ctx, "k", []byte("w"))
			require.NoError(t, err)
		}
		sameState(t, c, 0, 1, 2)
	})
}

// Vote amnesia, protocol 14: an empty disk under an old name has no vote.
func TestAWipedVoterComesBackWithoutItsVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		for i := range 20 {
			_, err := c.Node(0).KV("").Put(t.Context(), fmt.Sprint(i), []byte("v"))
			require.NoError(t, err)
		}
		c.Crash(0)
		c.Wipe(0)
		c.Restart(0)
		_, err := c.Node(0).KV("").Put(t.Context(), "more", nil)
		require.NoError(t, err, "it is a client")
		s, err := c.Node(0).Status(t.Context())
		require.NoError(t, err)
		require.Zero(t, s.Applied, "it has no replica")
		c.Isolate(2) // one voter of three is left: the wiped one must not make it two
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		_, err = c.Node(0).KV("").Put(ctx, "k", nil)
		require.Error(t, err)
		_, err = c.Node(1).KV("").Put(ctx, "k", nil)
		require.Error(t, err)
		c.Heal()
		_, err = c.Node(0).KV("").Put(t.Context(), "k", nil)
		require.NoError(t, err)
	})
}
