package counter_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAddsAreExactOverLossesAndADeadLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		c.Network().SetAll(memnet.Rule{Drop: 0.02, Dup: 0.02, Delay: time.Millisecond, Jitter: 3 * time.Millisecond})
		lead := c.WaitLeader(t.Context())
		var done atomic.Int64
		var wg sync.WaitGroup
		for i := range 3 {
			if c.Node(i).Name() == lead {
				continue
			}
			n := c.Node(i)
			for range 4 {
				wg.Go(func() {
					for range 50 {
						if _, err := n.Counter("hits").Add(t.Context(), 1); err != nil {
							t.Error(err)
							return
						}
						done.Add(1)
					}
				})
			}
		}
		for done.Load() < 100 {
			time.Sleep(time.Millisecond)
		}
		live := -1
		for i := range 3 {
			if c.Node(i).Name() == lead {
				c.Crash(i)
			} else {
				live = i
			}
		}
		wg.Wait()
		got, err := c.Node(live).Counter("hits").Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(400), got)
	})
}

func TestNumbersAreComparedAndReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 1)
		n := c.Node(0).Counter("c")
		v, err := n.Add(t.Context(), -5)
		require.NoError(t, err)
		require.Equal(t, int64(-5), v)
		ok, err := n.CompareAndSwap(t.Context(), 0, 1)
		require.NoError(t, err)
		require.False(t, ok)
		ok, err = n.CompareAndSwap(t.Context(), -5, 1<<62)
		require.NoError(t, err)
		require.True(t, ok)
		seen := map[uint64]bool{}
		other := c.Node(0).Counter("c")
		for range 1500 {
			a, err := n.Next(t.Context())
			require.NoError(t, err)
			b, err := other.Next(t.Context())
			require.NoError(t, err)
			require.False(t, seen[a] || seen[b] || a == b)
			seen[a], seen[b] = true, true
		}
		v, err = n.Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(1<<62), v, "ids have a space of their own")
	})
}
