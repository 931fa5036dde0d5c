package nodetest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func index(c *nodetest.Cluster, n int, name string) int {
	for i := range n {
		if c.Node(i) != nil && c.Node(i).Name() == name {
			return i
		}
	}
	return -1
}

func TestAPartitionedClusterGoesOnWhereTheMajorityIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		lead := index(c, 3, c.WaitLeader(t.Context()))
		a, b := (lead+1)%3, (lead+2)%3
		_, err := c.Node(lead).KV("").Put(t.Context(), "k", []byte("before"))
		require.NoError(t, err)
		c.Partition([]int{lead}, []int{a, b})
		began := time.Now()
		_, err = c.Node(a).KV("").Put(t.Context(), "k", []byte("majority"))
		require.NoError(t, err)
		require.Less(t, time.Since(began), 5*time.Second, "P10")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err = c.Node(lead).KV("").Get(ctx, "k")
		require.ErrorIs(t, err, consensus.ErrNoQuorum, "a cut-off leader never answers from the past")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
		c.Heal()
		e, err := c.Node(lead).KV("").Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "majority", string(e.Value))
	})
}

func TestAcknowledgedWritesSurviveTheLossOfPowerEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		k := c.Node(1).KV("")
		for i := range 50 {
			_, err := k.Put(t.Context(), fmt.Sprint(i), []byte("v"))
			require.NoError(t, err)
		}
		h, err := c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		for i := range 3 {
			c.Crash(i)
		}
		var wg sync.WaitGroup
		for i := range 2 { // two of three are a majority
			wg.Go(func() { c.Restart(i) })
		}
		wg.Wait()
		for i := range 50 {
			_, err := c.Node(0).KV("").Get(t.Context(), fmt.Sprint(i))
			require.NoError(t, err)
		}
		next, err := c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, h.Token()+1, next.Token(), "a new process never inherits the hold of the old one")
		c.Restart(2)
		var hashes []uint64
		for i := range 3 {
			for { // replicas at the same index have the same state
				s, err := c.Node(i).Status(t.Context())
				require.NoError(t, err)
				first, err := c.Node(0).Status(t.Context())
				require.NoError(t, err)
				if s.Applied == first.Applied {
					hashes = append(hashes, s.Hash)
					require.Equal(t, first.Hash, s.Hash, "R1")
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		require.Len(t, hashes, 3)
	})
}

func TestEveryCallEndsByItsContextWhateverTheNetworkDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 5, nodetest.Seed(7), nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = 3 * time.Second }))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for i := range 5 {
			n := c.Node(i)
			wg.Go(func() {
				for k := 0; ; k++ {
					select {
					case <-stop:
						return
					default:
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					began := time.Now()
					var err error
					switch k % 4 {
					case 0:
						_, err = n.KV("").Put(ctx, "k", fmt.Append(nil, k))
					case 1:
						_, err = n.KV("").Get(ctx, "k")
					case 2:
						_, err = n.Counter("c").Add(ctx, 1)
					case 3:
						err = n.Mutex("m").Do(ctx, func(context.Context, *lock.Hold) error { return nil })
					}
					cancel()
					if d := time.Since(began); d > 1100*time.Millisecond && k%4 != 3 {
						t.Errorf("a call with a second to live took %v", d)
					}
					known := err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, consensus.ErrSessionExpired) || k%4 == 1 && err != nil
					if !known {
						t.Errorf("call %d: %v", k%4, err)
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		for round := range 6 {
			switch round % 3 {
			case 0:
				c.Partition([]int{0, 1}, []int{2, 3, 4})
			case 1:
				c.Heal()
				c.OneWay(round%5, (round+1)%5)
				c.Network().SetAll(memnet.Rule{Drop: 0.1, Dup: 0.05, Delay: 2 * time.Millisecond, Jitter: 20 * time.Millisecond})
			case 2:
				c.Heal()
				c.Network().SetAll(memnet.Rule{})
			}
			time.Sleep(2 * time.Second)
		}
		c.Heal()
		close(stop)
		wg.Wait()
		for i := range 5 {
			_, err := c.Node(i).KV("").Put(t.Context(), "last", nil)
			require.NoError(t, err, "all is well again")
		}
	})
}

func TestLeavingGivesBackAtOnceAndIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 5, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = 10 * time.Minute }))
		lead := index(c, 5, c.WaitLeader(t.Context()))
		_, err := c.Node(lead).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, c.Node(lead).Leave(t.Context()))
		h, err := c.Node((lead + 1) % 5).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), 10*time.Second, "nothing had to expire")
		require.NoError(t, h.Unlock(t.Context()))
		for {
			listed := false
			for m := range c.Node((lead + 1) % 5).Members() {
				listed = listed || m.Name == fmt.Sprintf("n%d", lead)
				if listed && time.Since(began) > time.Hour {
					t.Fatalf("still listed: %+v", m)
				}
			}
			if !listed {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestOneNodeAloneWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := nodetest.Single(t)
		h, err := n.Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestANodeThatStartsAgainFreesWhatItHeldBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = time.Hour }))
		lead := index(c, 3, c.WaitLeader(t.Context()))
		i := (lead + 1) % 3
		h, err := c.Node(i).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		began := time.Now()
		c.Crash(i)
		c.Restart(i)
		next, err := c.Node(lead).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, h.Token()+1, next.Token())
		require.Less(t, time.Since(began), 10*time.Second, "not by expiry")
	})
}

func TestALeavingNodeOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		n := c.Node(0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, n.Leave(ctx), context.Canceled, "out of time it behaves as Close, and says so")
		_, err := n.Mutex("m").Lock(t.Context())
		require.ErrorIs(t, err, consensus.ErrClosed)
		require.NoError(t, n.Leave(t.Context()))
		require.NoError(t, n.Close())
	})
}
