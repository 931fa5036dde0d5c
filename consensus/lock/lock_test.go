package lock_test

import (
	"context"
	"errors"
	"strings"
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
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ttl is the lease in these tests; all time is fake.
const ttl = 3 * time.Second

func cluster(t *testing.T, n int) *nodetest.Cluster {
	return nodetest.New(t, n, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = ttl }))
}

// follower is a node that does not lead.
func follower(t *testing.T, c *nodetest.Cluster, n int) int {
	lead := c.WaitLeader(t.Context())
	for i := range n {
		if c.Node(i) != nil && c.Node(i).Name() != lead {
			return i
		}
	}
	t.Fatal("every node leads")
	return -1
}

func TestAHolderStopsBelievingBeforeTheNextIsGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 5)
		i := follower(t, c, 5)
		h, err := c.Node(i).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		c.Isolate(i)
		var ended time.Time
		var wg sync.WaitGroup
		wg.Go(func() {
			<-h.Context().Done()
			ended = time.Now()
		})
		began := time.Now()
		next, err := c.Node((i + 1) % 5).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		granted := time.Now()
		wg.Wait()
		require.True(t, ended.Before(granted), "the holder believed for %v, the next was granted after %v", ended.Sub(began), granted.Sub(began))
		require.False(t, h.Valid())
		require.ErrorIs(t, context.Cause(h.Context()), lock.ErrLost)
		require.Equal(t, h.Token()+1, next.Token())
		require.Less(t, granted.Sub(began), 3*ttl, "a dead holder does not keep its lock")
	})
}

func TestWaitersAreServedInOrderOverADeadLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 5)
		lead := c.WaitLeader(t.Context())
		var live []int
		for i := range 5 {
			if c.Node(i).Name() != lead {
				live = append(live, i)
			}
		}
		first, err := c.Node(live[0]).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		var mu sync.Mutex
		var order []int
		var tokens []lock.Token
		var wg sync.WaitGroup
		for place := range 6 {
			m := c.Node(live[place%4]).Mutex("m")
			wg.Go(func() {
				h, err := m.Lock(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order, tokens = append(order, place), append(tokens, h.Token())
				mu.Unlock()
				if err := h.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
			for { // in line before the next one asks
				info, err := c.Node(live[0]).Mutex("m").Info(t.Context())
				require.NoError(t, err)
				if len(info.Waiters) == place+1 {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		for i := range 5 {
			if c.Node(i) != nil && c.Node(i).Name() == lead {
				c.Crash(i)
			}
		}
		require.NoError(t, first.Unlock(t.Context()))
		wg.Wait()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, order)
		for k, token := range tokens {
			require.Equal(t, first.Token()+lock.Token(k)+1, token, "tokens are consecutive over a change of leader")
		}
	})
}

func TestACancelledWaitLeavesNoZombie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		h, err := c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		why := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				_, err := c.Node(i % 3).Mutex("m").Lock(ctx)
				if !errors.Is(err, why) {
					t.Errorf("Lock whose ctx ended: %v", err)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		cancel(why)
		wg.Wait()
		require.NoError(t, h.Unlock(t.Context()))
		began := time.Now()
		h, err = c.Node(2).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), ttl/2, "no expiry was needed")
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestACircleOfWaitingIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		a, err := c.Node(0).Mutex("a").Lock(t.Context())
		require.NoError(t, err)
		b, err := c.Node(1).Mutex("b").Lock(t.Context())
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			h, err := c.Node(0).Mutex("b").Lock(a.Context())
			if err == nil {
				err = h.Unlock(t.Context())
			}
			done <- err
		}()
		time.Sleep(100 * time.Millisecond) // it waits
		_, err = c.Node(1).Mutex("a").Lock(b.Context())
		require.ErrorIs(t, err, lock.ErrDeadlock)
		d, ok := errors.AsType[*lock.DeadlockError](err)
		require.True(t, ok)
		require.Len(t, d.Cycle, 2, "%v", err)
		require.NoError(t, b.Unlock(t.Context()))
		require.NoError(t, <-done)
		require.NoError(t, a.Unlock(t.Context()))
	})
}

func TestTwoGoroutinesOfOneNodeAreNoDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1)
		m := c.Node(0).Mutex("m")
		h, err := m.Lock(t.Context())
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() {
			h, err := m.Lock(t.Context())
			if err == nil {
				err = h.Unlock(t.Context())
			}
			done <- err
		}()
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, <-done)
	})
}

func TestReentrantHoldsAreFreedByTheLastUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1)
		m := c.Node(0).Mutex("m")
		outer, err := m.Lock(t.Context())
		require.NoError(t, err)
		_, err = m.Lock(outer.Context())
		require.ErrorIs(t, err, lock.ErrDeadlock)
		inner, err := m.Lock(outer.Context(), lock.Reentrant())
		require.NoError(t, err)
		require.NoError(t, outer.Unlock(t.Context()))
		_, err = m.TryLock(t.Context())
		require.ErrorIs(t, err, lock.ErrLocked, "the inner hold is still there")
		require.NoError(t, inner.Unlock(t.Context()))
		require.NoError(t, inner.Unlock(t.Context()), "again")
		h, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestDoUnlocksAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1)
		m := c.Node(0).Mutex("m")
		require.Panics(t, func() {
			_ = m.Do(t.Context(), func(context.Context, *lock.Hold) error { panic("boom") })
		})
		h, err := m.TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestWithoutAQuorumLocksEndByTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		h, err := c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		c.Isolate(0)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err = c.Node(0).Mutex("other").Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, errors.Is(err, consensus.ErrNoQuorum) != errors.Is(err, consensus.ErrUnknown), "exactly one of the two: %v", err)
		<-h.Context().Done()
		c.Heal()
		require.NoError(t, h.Unlock(t.Context()), "nothing is left to free")
		h, err = c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err, "under a new session")
		require.NoError(t, h.Verify(t.Context()))
		require.NoError(t, h.Unlock(t.Context()))
		require.ErrorIs(t, h.Verify(t.Context()), lock.ErrReleased)
	})
}

func TestAHoldWithItsOwnSessionSurvivesTheNodesSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		h, err := c.Node(0).Mutex("m").Lock(t.Context(), lock.WithTTL(time.Minute))
		require.NoError(t, err)
		_, err = c.Node(0).Mutex("short").Lock(t.Context())
		require.NoError(t, err)
		c.Isolate(0)
		time.Sleep(3 * ttl)
		c.Heal()
		require.True(t, h.Valid())
		require.NoError(t, h.Verify(t.Context()))
		require.NoError(t, h.Unlock(t.Context()))
		next, err := c.Node(1).Mutex("m").TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, next.Unlock(t.Context()))
	})
}

func TestBadNamesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", 257), "a\nb", "\xff"} {
		_, err := lock.New(nil, name).Lock(t.Context()) // a keeper would be needed to send
		require.ErrorIs(t, err, consensus.ErrInvalid, "%q", name)
	}
}

func TestAMemoryFenceRefusesWhoWasOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := lock.NewMemoryFence()
		require.NoError(t, f.Admit(t.Context(), "db", 5))
		require.NoError(t, f.Admit(t.Context(), "db", 5), "the same holder writes again")
		require.NoError(t, f.Admit(t.Context(), "other", 1))
		require.NoError(t, f.Admit(t.Context(), "db", 7))
		require.ErrorIs(t, f.Admit(t.Context(), "db", 6), lock.ErrStaleToken)

		var log []string
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = f.Run(t.Context(), "db", 8, func(context.Context) error {
				time.Sleep(time.Second)
				log = append(log, "8")
				return nil
			})
		})
		synctest.Wait()
		require.NoError(t, f.Run(t.Context(), "db", 9, func(context.Context) error { log = append(log, "9"); return nil }))
		wg.Wait()
		require.Equal(t, []string{"8", "9"}, log, "a larger token waits for the one that runs")
	})
}
