package workqueue

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/wire"
)

// cpu is the processor time of this process: on a busy machine it says more than the clock.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fast is a world without delays, for benchmarks on real time.
func fast(b *testing.B, nodes int) []*node {
	w := newWorld(b)
	w.commit, w.trip = 0, 0
	var all []*node
	for i := range nodes {
		all = append(all, w.node(fmt.Sprintf("n%d", i), 1))
	}
	b.Cleanup(func() {
		for _, n := range all {
			require.NoError(b, n.Close())
		}
		w.close()
	})
	return all
}

// drain runs b.N tasks that do nothing, submitted on the first node by callers, and
// reports how many ran in a second and on which node.
func drain(b *testing.B, nodes []*node, cfg Config, callers, batch int) {
	var left atomic.Int64
	var away atomic.Int64
	left.Store(int64(b.N))
	over := make(chan struct{})
	qs, stop := serve(b, nodes, cfg, 2, func(node string) Handler[load] {
		return func(context.Context, *Task[load]) error {
			if node != "n0" {
				away.Add(1)
			}
			if left.Add(-1) == 0 {
				close(over)
			}
			return nil
		}
	})
	defer stop()
	b.ReportAllocs()
	b.ResetTimer()
	began := cpu(b)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range callers {
		wg.Go(func() {
			for next.Add(int64(batch)) <= int64(b.N)+int64(batch)-1 {
				if batch == 1 {
					if _, err := qs[0].Submit(context.Background(), load{}); err != nil {
						b.Error(err)
					}
					continue
				}
				if _, err := qs[0].SubmitAll(context.Background(), loads(batch)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	<-over
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/task")
	b.ReportMetric(100*float64(away.Load())/float64(b.N), "%elsewhere")
}

// BenchmarkFloor is a channel and two goroutines that decode: no records, no
// results, no other node.
func BenchmarkFloor(b *testing.B) {
	c := make(chan []byte, 1024)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for raw := range c {
				var l load
				if err := wire.Unmarshal(raw, &l); err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	began := cpu(b)
	var next atomic.Int64
	var callers sync.WaitGroup
	for range 2 {
		callers.Go(func() {
			for next.Add(1) <= int64(b.N) {
				raw, err := encode("payload", &load{}, maxPayload)
				if err != nil {
					b.Error(err)
				}
				c <- raw
			}
		})
	}
	callers.Wait()
	close(c)
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/task")
}

func BenchmarkVolatileOnOneNode(b *testing.B) {
	drain(b, fast(b, 1), Config{Mode: Volatile, MaxReady: 1 << 30}, 2, 1)
}

func BenchmarkVolatileAcrossTwoNodes(b *testing.B) {
	nodes := fast(b, 2)
	drainAway(b, nodes)
}

// drainAway has no workers at the origin: every task travels, and so does its result.
func drainAway(b *testing.B, nodes []*node) {
	var left atomic.Int64
	left.Store(int64(b.N))
	over := make(chan struct{})
	_, stop := serve(b, nodes[1:], Config{Mode: Volatile}, 2, func(string) Handler[load] {
		return func(context.Context, *Task[load]) error {
			if left.Add(-1) == 0 {
				close(over)
			}
			return nil
		}
	})
	defer stop()
	q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile, MaxReady: 1 << 30})
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	began := cpu(b)
	for range b.N {
		if _, err := q.Submit(context.Background(), load{}); err != nil {
			b.Fatal(err)
		}
	}
	<-over
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/task")
}

// The ledger is a machine in this process: no network, no disk.
func BenchmarkDurableOverAMachineInProcess(b *testing.B) {
	b.Run("64 callers", func(b *testing.B) { drain(b, fast(b, 1), Config{}, 64, 1) })
	b.Run("batches of 100", func(b *testing.B) {
		b.N -= b.N % 100
		if b.N == 0 {
			b.N = 100
		}
		drain(b, fast(b, 1), Config{}, 8, 100)
	})
}

func BenchmarkInbox(b *testing.B) {
	var q inbox
	q.init()
	j := &job{}
	b.ReportAllocs()
	for b.Loop() {
		q.push(j)
		q.take()
	}
}

func BenchmarkStealAnswer(b *testing.B) {
	m := stealAnswer{start: 1 << 60, seq: 100, left: 1000}
	for i := range uint64(256) {
		m.tasks = append(m.tasks, parcel{number: 1e6 + i, claim: 1e6 + i, attempt: 1, submitted: uint64(time.Now().UnixNano()), payload: make([]byte, 64)})
	}
	b.ReportAllocs()
	for b.Loop() {
		var got stealAnswer
		require.NoError(b, unpack(pack(&m), &got))
	}
}
