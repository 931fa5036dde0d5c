package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/workqueue"
)

// The benchmarks run three nodes with real sockets and synced files in this process;
// callers are spread evenly over the nodes. Run them beside BenchmarkFloor.

// cluster is three nodes whose sessions do not expire in the middle.
func cluster(b *testing.B) []*node.Node {
	nodes, _ := real(b, 3, func(_ int, c *node.Config) { c.SessionTTL = time.Minute })
	for _, n := range nodes { // every session is open and every stream connected
		_, err := n.KV("warm/").Put(b.Context(), "up", nil)
		require.NoError(b, err)
	}
	return nodes
}

func BenchmarkLockUnlock(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			nodes := cluster(b)
			spread(b, callers, func(w int) error {
				h, err := nodes[w%3].Mutex(fmt.Sprintf("lock/%d", w)).Lock(b.Context())
				if err != nil {
					return err
				}
				return h.Unlock(b.Context())
			})
		})
	}
}

// BenchmarkHandOver passes one lock around 32 waiters; one op is one hand-over.
func BenchmarkHandOver(b *testing.B) {
	nodes := cluster(b)
	spread(b, 32, func(w int) error {
		h, err := nodes[w%3].Mutex("one").Lock(b.Context())
		if err != nil {
			return err
		}
		return h.Unlock(b.Context())
	})
}

func BenchmarkPut(b *testing.B) {
	for _, callers := range []int{1, 64, 256, 1024} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			nodes := cluster(b)
			value := make([]byte, 256)
			spread(b, callers, func(w int) error {
				_, err := nodes[w%3].KV("").Put(b.Context(), fmt.Sprint("k", w), value)
				return err
			})
		})
	}
}

func BenchmarkGet(b *testing.B) {
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprintf("voters/callers=%d", callers), func(b *testing.B) {
			nodes := cluster(b)
			_, err := nodes[0].KV("").Put(b.Context(), "k", make([]byte, 256))
			require.NoError(b, err)
			spread(b, callers, func(w int) error {
				_, err := nodes[w%3].KV("").Get(b.Context(), "k")
				return err
			})
		})
	}
}

// BenchmarkDurableTasks is submit to ack; one op is one task.
func BenchmarkDurableTasks(b *testing.B) {
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("callers=64/batch=%d", batch), func(b *testing.B) {
			nodes := cluster(b)
			var done atomic.Int64
			all := make(chan struct{})
			ctx, cancel := context.WithCancel(b.Context())
			var workers sync.WaitGroup
			var queues []*workqueue.Queue[int]
			for _, n := range nodes {
				q, err := workqueue.Open[int](n, "bench", workqueue.Config{Lease: time.Minute, Retention: time.Second})
				require.NoError(b, err)
				queues = append(queues, q)
				workers.Go(func() {
					q.Handle(ctx, func(context.Context, *workqueue.Task[int]) error {
						if done.Add(1) == int64(b.N) {
							close(all)
						}
						return nil
					}, workqueue.Workers{N: 64})
				})
			}
			var next atomic.Int64
			b.ReportAllocs()
			b.ResetTimer()
			var submitters sync.WaitGroup
			for w := range 64 {
				submitters.Go(func() {
					for {
						from := int(next.Add(int64(batch))) - batch
						if from >= b.N {
							return
						}
						_, err := queues[w%3].SubmitAll(ctx, func(yield func(int, []workqueue.TaskOption) bool) {
							for k := from; k < min(from+batch, b.N) && yield(k, nil); k++ {
							}
						})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			submitters.Wait()
			<-all
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
			cancel()
			workers.Wait()
		})
	}
}

// BenchmarkIdleTask is one task at a time on an idle cluster: submit on one node until a handler starts on another.
func BenchmarkIdleTask(b *testing.B) {
	nodes := cluster(b)
	started := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(b.Context())
	worker, err := workqueue.Open[int](nodes[1], "idle", workqueue.Config{Lease: time.Minute})
	require.NoError(b, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		worker.Handle(ctx, func(context.Context, *workqueue.Task[int]) error { started <- struct{}{}; return nil }, workqueue.Workers{N: 4})
	})
	q, err := workqueue.Open[int](nodes[0], "idle", workqueue.Config{Lease: time.Minute})
	require.NoError(b, err)
	for b.Loop() {
		_, err := q.Submit(ctx, 1)
		require.NoError(b, err)
		<-started
	}
	cancel()
	wg.Wait()
}

// BenchmarkFailover is the time from the loss of the leader to the next acknowledged
// write; one op is one loss, and includes the return of the node.
func BenchmarkFailover(b *testing.B) {
	nodes, cfgs := real(b, 3, func(_ int, c *node.Config) { c.SessionTTL = time.Minute })
	var lost time.Duration
	for range b.N {
		lead := -1
		for lead < 0 {
			for i, n := range nodes {
				if s, err := n.Status(b.Context()); err == nil && s.Leader == n.Name() {
					lead = i
				}
			}
		}
		_, err := nodes[(lead+1)%3].KV("").Put(b.Context(), "k", nil)
		require.NoError(b, err)
		began := time.Now()
		require.NoError(b, nodes[lead].Close())
		nodes[lead] = nil
		_, err = nodes[(lead+1)%3].KV("").Put(b.Context(), "k", nil)
		require.NoError(b, err)
		lost += time.Since(began)
		n, err := node.Start(b.Context(), cfgs[lead])
		nodes[lead] = n
		require.NoError(b, errors.Join(err, n.Ready(b.Context())))
	}
	b.ReportMetric(lost.Seconds()*1000/float64(b.N), "ms/failover")
}
