package workqueue

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
)

func TestNothingIsLostOnALossyNetwork(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, 4, func(t *testing.T, w *world, nodes []*node) {
				for range seed {
					w.random.Uint64()
				}
				w.set(func() { w.lossy, w.doubled, w.jitter = 0.05, 0.2, 5*time.Millisecond })
				runs := newRuns()
				qs, stop := serve(t, nodes, Config{Mode: Volatile}, 3, func(n string) Handler[load] { return runs.handler(n, 20*time.Millisecond) })
				defer stop()
				ids := submitAll(t, qs[0], 500)
				for _, id := range ids {
					r, err := qs[0].Wait(t.Context(), id)
					require.NoError(t, err)
					require.Equal(t, 1, r.Attempts)
				}
				runs.noAttemptTwice(t)
				require.Equal(t, 500, runs.count())
				require.Greater(t, 500-runs.startedOn("n0"), 20, "vacuous: nothing was stolen")
				w.set(func() { w.lossy, w.doubled = 0, 0 })
			})
		})
	}
}

func TestAnIdleClusterIsSilentAndStartsAtOnce(t *testing.T) {
	bubble(t, 5, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		var mu sync.Mutex
		var starts []time.Time
		qs, stop := serve(t, nodes, Config{Mode: Volatile}, 2, func(n string) Handler[load] {
			return func(ctx context.Context, task *Task[load]) error {
				mu.Lock()
				starts = append(starts, time.Now())
				mu.Unlock()
				return runs.handler(n, time.Second)(ctx, task)
			}
		})
		defer stop()
		pass(time.Minute)
		calls := func() (n int) { w.set(func() { n = w.calls }); return n }
		before := calls()
		pass(10 * time.Minute)
		perNode := float64(calls()-before) / 600 / 5
		require.Less(t, perNode, 0.5, "calls per second and node")

		began := time.Now()
		_, err := qs[2].SubmitAll(t.Context(), loads(10))
		require.NoError(t, err)
		pass(900 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, starts, 10, "two on each node")
		for _, s := range starts {
			require.Less(t, s.Sub(began), 5*time.Millisecond, "told, asked, given: a few trips")
		}
	})
}

func TestANewBootOfAThiefMeansThatItsTasksAreLost(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		stuck := func(n string) Handler[load] {
			return func(ctx context.Context, task *Task[load]) error {
				runs.mu.Lock()
				runs.started[n]++
				runs.mu.Unlock()
				<-ctx.Done()
				return context.Cause(ctx)
			}
		}
		_, stop := serve(t, nodes[1:], Config{Mode: Volatile}, 2, stuck)
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		ids := submitAll(t, q, 10)
		pass(time.Second)
		require.Equal(t, 2, runs.startedOn("n1"))
		nodes[1].kill()
		again := w.node("n1", 2) // membership never said that it was dead
		defer func() { require.NoError(t, again.Close()) }()
		_, stop2 := serve(t, []*node{again}, Config{Mode: Volatile}, 2, func(n string) Handler[load] { return runs.handler(n, 10*time.Millisecond) })
		defer stop2()
		second := 0
		for _, id := range ids {
			r, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
			second += r.Attempts - 1
		}
		require.Equal(t, 2, second)
		runs.noAttemptTwice(t)
	})
}

func TestAFalseVerdictOfDeathCountsOnce(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		_, stop := serve(t, nodes[1:], Config{Mode: Volatile}, 4, func(n string) Handler[load] { return runs.handler(n, 10*time.Second) })
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		ids := submitAll(t, q, 4)
		pass(time.Second)
		require.Equal(t, 4, runs.startedOn("n1"))
		w.bury(nodes[1])
		pass(time.Second)
		w.set(func() { nodes[1].peer.alive = true })
		w.change()
		for _, id := range ids {
			r, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, 2, r.Attempts, "the report of the first attempt changes nothing")
		}
		st, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Done: 4}, st)
		runs.noAttemptTwice(t)
	})
}

func TestAPoisonedTaskDiesAloneAndTheInnocentLive(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		ids := submitAll(t, q, 8)
		poison := ids[5]
		for boot := uint64(1); boot < 9; boot++ {
			n := w.node("victim", boot)
			killed := make(chan struct{}, 1)
			_, stop := serve(t, []*node{n}, Config{Mode: Volatile}, 4, func(string) Handler[load] {
				return func(ctx context.Context, task *Task[load]) error {
					if task.ID != poison {
						pass(10 * time.Millisecond)
						return context.Cause(ctx)
					}
					killed <- struct{}{}
					<-ctx.Done()
					return context.Cause(ctx)
				}
			})
			select {
			case <-killed:
			case <-time.After(20 * time.Second):
			}
			n.kill()
			stop()
		}
		for _, id := range ids {
			r, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
			if id == poison {
				require.Equal(t, "dead", r.State)
				require.Equal(t, "its worker was lost", r.Err)
				require.Equal(t, 4, r.Attempts, "the first loss was charged to nobody")
				continue
			}
			require.Equal(t, "done", r.State)
		}
	})
}

func TestTasksOfAnOriginThatIsGoneAreGone(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: Volatile}, 2, func(n string) Handler[load] { return runs.handler(n, time.Second) })
		defer stop()
		ids, err := qs[0].SubmitAll(t.Context(), loads(30))
		require.NoError(t, err)
		waited := make(chan error, 30)
		for _, id := range ids {
			w.work.Go(func() { _, err := qs[1].Wait(context.Background(), id); waited <- err })
		}
		pass(1500 * time.Millisecond)
		nodes[0].kill()
		w.bury(nodes[0])
		lost := 0
		for range ids {
			if err := <-waited; err != nil {
				require.ErrorIs(t, err, ErrNotFound)
				lost++
			}
		}
		require.GreaterOrEqual(t, lost, 18)
		require.NoError(t, nodes[1].Drain(t.Context()), "it does not wait for the dead to hear of results")
		_, err = qs[2].Submit(t.Context(), load{99})
		require.NoError(t, err)
	})
}

func TestAnOriginThatStartsAnewKnowsNothing(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		_, stop := serve(t, nodes[1:], Config{Mode: Volatile}, 2, func(n string) Handler[load] { return runs.handler(n, time.Second) })
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		ids := submitAll(t, q, 6)
		pass(500 * time.Millisecond)
		nodes[0].kill()
		again := w.node("n0", 2)
		defer func() { require.NoError(t, again.Close()) }()
		q, err = Open[load](again, "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		_, err = q.Wait(t.Context(), ids[0])
		require.ErrorIs(t, err, ErrNotFound)
		id, err := q.Submit(t.Context(), load{100})
		require.NoError(t, err)
		r, err := q.Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "n1", r.Node)
		require.NotContains(t, ids, id)
	})
}

func TestStealOffKeepsTasksAtHome(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: Volatile, Steal: Steal{Off: true}}, 2, func(n string) Handler[load] { return runs.handler(n, 10*time.Millisecond) })
		defer stop()
		for _, id := range submitAll(t, qs[0], 50) {
			_, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
		}
		require.Zero(t, runs.startedOn("n1"))
	})
}

func TestLargePayloadsTravel(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		var sizes sync.Map
		q, err := Open[[]byte](nodes[0], "large", Config{Mode: Volatile})
		require.NoError(t, err)
		other, err := Open[[]byte](nodes[1], "large", Config{Mode: Volatile})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		w.work.Go(func() {
			other.Handle(ctx, func(_ context.Context, task *Task[[]byte]) error {
				sizes.Store(len(task.Payload), task.Stolen)
				return nil
			}, Workers{N: 4})
		})
		for k := range 12 {
			id, err := q.Submit(t.Context(), make([]byte, 80_000*(k+1)))
			require.NoError(t, err)
			defer func() {
				_, err := q.Wait(context.Background(), id)
				require.NoError(t, err)
				stolen, ok := sizes.Load(80_000 * (k + 1))
				require.True(t, ok && stolen.(bool))
			}()
		}
		pass(time.Second)
		_, err = q.Submit(t.Context(), nil, Priority(1))
		require.ErrorIs(t, err, consensus.ErrInvalid)
		cancel()
	})
}
