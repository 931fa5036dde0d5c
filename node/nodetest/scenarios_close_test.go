package nodetest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus/election"
	"github.com/clatter-go/clatter/consensus/kv"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/workqueue"
)

// A node is closed or left in the middle of everything. The bubble itself fails if a
// goroutine is left or all of them wait for ever.
func TestANodeThatIsClosedInTheMiddleLeavesNothingBehind(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 9))
			c := nodetest.New(t, 3, nodetest.Seed(seed+1), nodetest.Configure(short))
			var wg sync.WaitGroup
			for i := range 3 {
				busy(c.Node(i), i, &wg)
			}
			time.Sleep(time.Duration(rng.IntN(100_000)) * time.Microsecond)
			for _, i := range rng.Perm(3) {
				began := time.Now()
				if rng.IntN(3) == 0 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(2000))*time.Millisecond)
					_ = c.Node(i).Leave(ctx)
					cancel()
				} else {
					require.NoError(t, c.Node(i).Close())
				}
				require.Less(t, time.Since(began), 5*time.Second)
				time.Sleep(time.Duration(rng.IntN(200_000)) * time.Microsecond)
			}
			wg.Wait() // every call has returned
		})
	}
}

// busy has one of everything run on a node until the node refuses.
func busy(n *node.Node, i int, wg *sync.WaitGroup) {
	ctx := context.Background()
	loop := func(fn func(k int) error) {
		wg.Go(func() {
			for k := 0; fn(k) == nil; k++ {
				time.Sleep(7 * time.Millisecond)
			}
		})
	}
	loop(func(k int) error { _, err := n.KV("").Put(ctx, fmt.Sprint("k", k%9), nil); return err })
	loop(func(int) error { _, err := n.KV("").Get(ctx, "k1"); return ignore(err, n) })
	loop(func(int) error {
		return n.Mutex("m").Do(ctx, func(context.Context, *lock.Hold) error { time.Sleep(time.Millisecond); return nil })
	})
	loop(func(int) error { _, err := n.Counter("c").Add(ctx, 1); return err })
	loop(func(int) error { _, err := n.Counter("c").Next(ctx); return err })
	loop(func(int) error {
		_, err := n.Mutex(fmt.Sprint("x", i)).Lock(ctx, lock.WithTTL(4*time.Second))
		if err == nil {
			_, err = n.Mutex(fmt.Sprint("x", (i+1)%3)).Lock(ctx)
		}
		return err
	})
	wg.Go(func() {
		_ = n.Election("e").Run(ctx, func(ctx context.Context, _ *election.Leadership) error { <-ctx.Done(); return nil })
	})
	wg.Go(func() {
		for _, err := range n.Election("e").Observe(ctx) {
			_ = err
		}
	})
	wg.Go(func() {
		for _, err := range n.KV("").Watch(ctx, "") {
			_ = err
		}
	})
	wg.Go(func() {
		for _, err := range n.Events(ctx) {
			_ = err
		}
	})
	for _, mode := range []workqueue.Mode{workqueue.Durable, workqueue.Volatile} {
		q, err := workqueue.Open[int](n, "q"+mode.String(), workqueue.Config{Mode: mode, Lease: 4 * time.Second})
		if err != nil {
			return
		}
		wg.Go(func() {
			_ = q.Handle(ctx, func(ctx context.Context, _ *workqueue.Task[int]) error {
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Millisecond):
				}
				return nil
			}, workqueue.Workers{N: 2, Drain: 100 * time.Millisecond})
		})
		loop(func(k int) error { _, err := q.Submit(ctx, k); return err })
	}
}

// ignore ends a loop only when the node has ended.
func ignore(err error, n *node.Node) error {
	if _, closed := n.Status(context.Background()); closed != nil {
		return closed
	}
	_ = err
	return nil
}

// Many keys and locks: what they cost and how long a restart takes.
func TestManyKeysAndLocksAreCheap(t *testing.T) {
	const keys, locks = 100_000, 20_000
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 1, nodetest.Configure(func(_ int, c *node.Config) { c.Join, c.SessionTTL = nil, 10*time.Minute }))
		before := heap()
		var wg sync.WaitGroup
		for w := range 100 {
			wg.Go(func() {
				for i := w * keys / 100; i < (w+1)*keys/100; i += 100 {
					if _, err := c.Node(0).KV("").Txn(t.Context(), func(tx *kv.Tx) error {
						for k := range 100 {
							tx.Put(fmt.Sprintf("key/%06d", i+k), []byte("0123456789abcdef"))
						}
						return nil
					}); err != nil {
						t.Error(err)
						return
					}
				}
				for i := w; i < locks; i += 100 {
					if _, err := c.Node(0).Mutex(fmt.Sprint("lock/", i)).Lock(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		grown := heap() - before
		t.Logf("%d keys and %d locks: heap %d MiB, disk %d MiB", keys, locks, grown>>20, c.Disk(0).Used()>>20)
		require.Less(t, grown-int(c.Disk(0).Used()), 400<<20)
		c.Crash(0)
		began := time.Now()
		c.Restart(0)
		_ = began
		h, err := c.Node(0).Mutex("lock/7").Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, lock.Token(2), h.Token())
		_, err = c.Node(0).KV("").Get(t.Context(), "key/099999")
		require.NoError(t, err)
	})
}

func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
