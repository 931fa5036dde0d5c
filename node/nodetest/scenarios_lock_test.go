package nodetest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/transport/memnet"
)

func short(_ int, c *node.Config) { c.SessionTTL = 3 * time.Second }

// LS-03, LS-04: a cut leader every two seconds.
func TestFlappingLeadersFreeDeadSessionsAndKeepLiveOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 5, nodetest.Configure(func(i int, cfg *node.Config) {
			cfg.SessionTTL = 6 * time.Second
			cfg.NonVoter, cfg.Expect = i > 2, 3
		}))
		live, err := c.Node(3).Mutex("live").Lock(t.Context())
		require.NoError(t, err)
		_, err = c.Node(4).Mutex("dead").Lock(t.Context())
		require.NoError(t, err)
		c.Kill(4)
		died := time.Now()
		freed := make(chan time.Duration, 1)
		go func() {
			h, err := c.Node(3).Mutex("dead").Lock(context.Background())
			if err == nil && h.Token() == 2 {
				freed <- time.Since(died)
			}
			close(freed)
		}()
		for range 10 {
			lead := index(c, 3, c.WaitLeader(t.Context()))
			a, b := (lead+1)%3, (lead+2)%3
			c.Partition([]int{lead}, []int{a, b, 3})
			time.Sleep(2 * time.Second)
			c.Heal()
			require.True(t, live.Valid(), "the holder reached the majority all the time")
		}
		select {
		case after := <-freed:
			require.Greater(t, after, 6*time.Second)
			require.Less(t, after, 22*time.Second, "2 TTL + 10 s (LS-03)")
		default:
			t.Fatal("the dead session lives on")
		}
		require.NoError(t, live.Verify(t.Context()))
		require.NoError(t, live.Unlock(t.Context()))
	})
}

// LK-12: belief ends before the successor begins, wherever the cut holder stands.
func TestACutHolderStopsBelievingBeforeTheNextIsGranted(t *testing.T) {
	for _, leads := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, 3, nodetest.Configure(short))
			lead := index(c, 3, c.WaitLeader(t.Context()))
			holder := lead
			if !leads {
				holder = (lead + 1) % 3
			}
			other := (holder + 1) % 3
			h, err := c.Node(holder).Mutex("m").Lock(t.Context())
			require.NoError(t, err)
			var lost time.Time
			stop := context.AfterFunc(h.Context(), func() { lost = time.Now() })
			defer stop()
			time.Sleep(5 * time.Second)
			require.True(t, h.Valid())
			cut := time.Now()
			c.Isolate(holder)
			next, err := c.Node(other).Mutex("m").Lock(t.Context())
			granted := time.Now()
			require.NoError(t, err)
			synctest.Wait()
			require.False(t, h.Valid())
			require.False(t, lost.IsZero())
			require.Less(t, lost.Sub(cut), 3*time.Second)
			require.Less(t, granted.Sub(cut), 9*time.Second, "1.1 TTL, one grace, one election")
			require.True(t, lost.Before(granted), "lost %v after the cut, granted %v", lost.Sub(cut), granted.Sub(cut))
			require.Equal(t, h.Token()+1, next.Token())
			c.Heal()
			time.Sleep(5 * time.Second)
			require.False(t, h.Valid(), "false is final")
			require.ErrorIs(t, h.Verify(t.Context()), lock.ErrLost)
			require.NoError(t, h.Unlock(t.Context()))
			require.NoError(t, next.Verify(t.Context()), "an old unlock frees nobody")
		})
	}
}

// LK-07, LK-13: a cancelled Lock leaves nothing behind, whenever it is cancelled.
func TestCancelledLocksLeaveNoZombie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(short))
		c.Network().SetAll(memnet.Rule{Delay: time.Millisecond, Jitter: 4 * time.Millisecond})
		rng := rand.New(rand.NewPCG(3, 3))
		var got atomic.Int32
		for i := range 200 {
			name := fmt.Sprint("m", i%4)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			h, err := c.Node(i % 3).Mutex(name).Lock(ctx)
			cancel()
			require.NoError(t, err, "a zombie has it")
			var wg sync.WaitGroup
			for w := range 3 {
				patience := time.Duration(rng.IntN(24_000)) * time.Microsecond
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					h, err := c.Node(w).Mutex(name).Lock(ctx)
					if err == nil {
						got.Add(1)
						if err := h.Unlock(t.Context()); err != nil {
							t.Error(err)
						}
						return
					}
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				})
			}
			time.Sleep(time.Duration(rng.IntN(15)) * time.Millisecond)
			require.NoError(t, h.Unlock(t.Context()))
			wg.Wait()
		}
		require.NotZero(t, got.Load())
		for i := range 4 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			h, err := c.Node(i % 3).Mutex(fmt.Sprint("m", i)).Lock(ctx)
			require.NoError(t, err, "free within a second")
			require.NoError(t, h.Unlock(ctx))
			cancel()
			info, err := c.Node(0).Mutex(fmt.Sprint("m", i)).Info(t.Context())
			require.NoError(t, err)
			require.Empty(t, info.Holders)
			require.Empty(t, info.Waiters)
		}
	})
}

// LK-14: an Unlock whose answer never comes frees all the same, once, and nobody else.
func TestAnUnlockThatIsLostIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = time.Minute }))
		lead := index(c, 3, c.WaitLeader(t.Context()))
		holder, other := (lead+1)%3, (lead+2)%3
		for _, mute := range [][2]int{{lead, holder}, {holder, lead}} {
			h, err := c.Node(holder).Mutex("m").Lock(t.Context())
			require.NoError(t, err)
			c.OneWay(mute[0], mute[1])
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			require.ErrorIs(t, h.Unlock(ctx), consensus.ErrUnknown)
			cancel()
			require.False(t, h.Valid())
			time.Sleep(20 * time.Second) // connections die, and the request with them
			c.Heal()
			ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
			next, err := c.Node(other).Mutex("m").Lock(ctx)
			cancel()
			require.NoError(t, err, "freed in the background")
			require.Equal(t, h.Token()+1, next.Token())
			require.NoError(t, h.Unlock(t.Context()))
			require.NoError(t, next.Verify(t.Context()))
			require.NoError(t, next.Unlock(t.Context()))
		}
	})
}

// RF-02 and asymmetric cuts: who hears nobody but is heard topples no leader for long.
func TestOneWayCutsOfAVoterStopNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(short))
		lead := index(c, 3, c.WaitLeader(t.Context()))
		a, b := (lead+1)%3, (lead+2)%3
		before, err := c.Node(lead).Status(t.Context())
		require.NoError(t, err)
		for name, cut := range map[string]func(){
			"deaf follower": func() { c.OneWay(lead, a); c.OneWay(b, a) },
			"mute follower": func() { c.OneWay(a, lead); c.OneWay(a, b) },
		} {
			cut()
			for range 20 {
				began := time.Now()
				_, err := c.Node(b).KV("").Put(t.Context(), "k", nil)
				require.NoError(t, err)
				require.Less(t, time.Since(began), time.Second, name)
				time.Sleep(200 * time.Millisecond)
			}
			c.Heal()
			time.Sleep(2 * time.Second)
		}
		after, err := c.Node(lead).Status(t.Context())
		require.NoError(t, err)
		require.Equal(t, before.Term, after.Term, "a follower alone changes no leader")
		for name, cut := range map[string]func(){
			"deaf leader": func() { c.OneWay(a, lead); c.OneWay(b, lead) },
			"mute leader": func() { c.OneWay(lead, a); c.OneWay(lead, b) },
		} {
			lead = index(c, 3, c.WaitLeader(t.Context()))
			a, b = (lead+1)%3, (lead+2)%3
			cut()
			began := time.Now()
			_, err := c.Node(a).KV("").Put(t.Context(), "k", nil)
			require.NoError(t, err)
			require.Less(t, time.Since(began), 5*time.Second, name)
			c.Heal()
			time.Sleep(time.Second)
		}
	})
}

// KV-02: twenty per cent of everything is lost, some comes twice and out of order, and
// leaders are cut off while calls are under way, so that these are sent again.
func TestCountersAreExactOnABadNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Seed(11))
		c.Network().SetAll(memnet.Rule{Drop: 0.2, Dup: 0.1, Delay: time.Millisecond, Jitter: 10 * time.Millisecond})
		var mu sync.Mutex
		sure, maybe := int64(0), int64(0)
		var wg sync.WaitGroup
		for w := range 6 {
			wg.Go(func() {
				for k := range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), []time.Duration{300 * time.Millisecond, 10 * time.Second}[k%2])
					_, err := c.Node(w%3).Counter("c").Add(ctx, 1)
					cancel()
					mu.Lock()
					switch {
					case err == nil:
						sure++
					case errors.Is(err, consensus.ErrUnknown):
						maybe++
					case !errors.Is(err, consensus.ErrNoQuorum):
						t.Error(err)
					}
					mu.Unlock()
				}
			})
		}
		for range 4 {
			time.Sleep(300 * time.Millisecond)
			lead := index(c, 3, c.WaitLeader(t.Context()))
			c.OneWay(lead, (lead+1)%3) // it does what one node asks for, which does not hear of it
			time.Sleep(100 * time.Millisecond)
			c.Isolate(lead)
			time.Sleep(2 * time.Second)
			c.Heal()
		}
		wg.Wait()
		v, err := c.Node(0).Counter("c").Get(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, v, sure)
		require.LessOrEqual(t, v, sure+maybe)
		require.Greater(t, sure, int64(150), "most calls came through: %d unknown", maybe)
	})
}
