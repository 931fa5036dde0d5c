package workqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

func TestSubmitsShareCommits(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		q, err := Open[load](nodes[0], "jobs", Config{})
		require.NoError(t, err)
		began := time.Now()
		submitAll(t, q, 640) // from 32 callers
		require.Less(t, w.commands(machine.OpSubmit), 640/3)
		require.Less(t, time.Since(began), 100*time.Millisecond)
		st, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, 640, st.Ready)
	})
}

func TestAnIdleQueueStartsATaskAfterOneCommitAndOnePush(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		started := make(chan time.Time, 1)
		qs, stop := serve(t, nodes[1:], Config{}, 4, func(string) Handler[load] {
			return func(context.Context, *Task[load]) error { started <- time.Now(); return nil }
		})
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{})
		require.NoError(t, err)
		_, err = q.Submit(t.Context(), load{}) // the first one brings the settings
		require.NoError(t, err)
		<-started
		pass(time.Minute)
		began := time.Now()
		_, err = q.Submit(t.Context(), load{})
		require.NoError(t, err)
		require.LessOrEqual(t, (<-started).Sub(began), w.commit+w.trip)
		_ = qs
	})
}

func TestLongTasksAreNotHoarded(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes[:1], Config{}, 4, func(n string) Handler[load] {
			return func(ctx context.Context, task *Task[load]) error {
				if task.Payload.N < 0 {
					return nil
				}
				return runs.handler(n, time.Minute)(ctx, task)
			}
		})
		defer stop()
		for range 50 { // short ones, so that the node takes many ahead
			_, err := qs[0].Submit(t.Context(), load{-1})
			require.NoError(t, err)
		}
		pass(time.Second)
		_, err := qs[0].SubmitAll(t.Context(), loads(8))
		require.NoError(t, err)
		pass(10 * time.Second)
		_, stop2 := serve(t, nodes[1:], Config{}, 4, func(n string) Handler[load] { return runs.handler(n, time.Minute) })
		defer stop2()
		pass(10 * time.Second)
		require.Equal(t, 4, runs.startedOn("n0"))
		require.Equal(t, 4, runs.startedOn("n1"), "what waited behind long tasks was handed back")
		runs.noAttemptTwice(t)
	})
}

func TestLostNewsOfClaimsAreFound(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{}, 4, func(n string) Handler[load] { return runs.handler(n, 10*time.Millisecond) })
		defer stop()
		pass(time.Second)
		w.set(func() { w.deaf = true })
		ids := submitAll(t, qs[0], 50)
		pass(100 * time.Millisecond)
		require.Zero(t, runs.count(), "vacuous: the assignments were heard of")
		w.set(func() { w.deaf = false })
		for _, id := range ids {
			r, err := qs[1].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, 1, r.Attempts, "what was never started is handed back, not lost")
		}
		runs.noAttemptTwice(t)
	})
}

func TestALostSessionEndsHandlersBeforeOthersStart(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		var mu sync.Mutex
		holders := map[int]string{}
		claims := map[int]uint64{}
		qs, stop := serve(t, nodes, Config{Lease: 3 * time.Second}, 2, func(n string) Handler[load] {
			return func(ctx context.Context, task *Task[load]) error {
				mu.Lock()
				if other := holders[task.Payload.N]; other != "" {
					t.Errorf("%s runs task %d while %s does", n, task.Payload.N, other)
				}
				if c := uint64(task.Claim); c <= claims[task.Payload.N] {
					t.Errorf("claim %d after %d", c, claims[task.Payload.N])
				}
				holders[task.Payload.N], claims[task.Payload.N] = n, uint64(task.Claim)
				mu.Unlock()
				var err error
				select {
				case <-ctx.Done():
					err = context.Cause(ctx)
					if !errors.Is(err, consensus.ErrSessionExpired) {
						t.Errorf("cause %v", err)
					}
				case <-time.After(10 * time.Second):
				}
				mu.Lock()
				holders[task.Payload.N] = ""
				mu.Unlock()
				return err
			}
		})
		defer stop()
		ids, err := qs[0].SubmitAll(t.Context(), loads(4))
		require.NoError(t, err)
		pass(5 * time.Second)
		w.set(func() { // the node is cut from the cluster for a while
			for _, s := range w.sessions {
				s.cut = s.cut || s.node == "n1" && s.ttl == 3*time.Second
			}
		})
		again := 0
		for _, id := range ids {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "done", r.State)
			again += r.Attempts - 1
		}
		require.Equal(t, 2, again)
		runsOn1 := make(chan struct{}, 8)
		_ = runsOn1
		more, err := qs[0].SubmitAll(t.Context(), loads(4))
		require.NoError(t, err)
		for _, id := range more {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "done", r.State)
		}
	})
}

func TestUniqueTaskIsSubmittedOnce(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		a, err := Open[load](nodes[0], "jobs", Config{})
		require.NoError(t, err)
		b, err := Open[load](nodes[1], "jobs", Config{})
		require.NoError(t, err)
		first, err := a.Submit(t.Context(), load{1}, Unique("k", time.Hour))
		require.NoError(t, err)
		second, err := b.Submit(t.Context(), load{1}, Unique("k", time.Hour))
		require.ErrorIs(t, err, ErrDuplicate)
		require.Equal(t, first, second)
		third, err := b.Submit(t.Context(), load{1}, Unique("other", time.Hour))
		require.NoError(t, err)
		require.NotEqual(t, first, third)
		ids, err := a.SubmitAll(t.Context(), func(yield func(load, []TaskOption) bool) {
			_ = yield(load{2}, nil) && yield(load{3}, []TaskOption{Unique("k", time.Hour)})
		})
		require.ErrorIs(t, err, ErrDuplicate)
		require.Equal(t, first, ids[1])
		require.NotEqual(t, first, ids[0])
	})
}

func TestTasksOfOneKeyRunInOrder(t *testing.T) {
	bubble(t, 3, func(t *testing.T, w *world, nodes []*node) {
		var mu sync.Mutex
		last := map[string]int{}
		qs, stop := serve(t, nodes, Config{Backoff: func(int, error) time.Duration { return time.Second }}, 4, func(string) Handler[load] {
			return func(_ context.Context, task *Task[load]) error {
				pass(time.Millisecond)
				if task.Attempt == 1 && task.Payload.N%7 == 3 {
					return errors.New("once more")
				}
				mu.Lock()
				defer mu.Unlock()
				if task.Payload.N != last[task.OrderKey]+1 {
					t.Errorf("%s: %d after %d", task.OrderKey, task.Payload.N, last[task.OrderKey])
				}
				last[task.OrderKey] = task.Payload.N
				return nil
			}
		})
		defer stop()
		var ids []TaskID
		for n := range 30 {
			for key := range 4 {
				id, err := qs[key%3].Submit(t.Context(), load{n + 1}, OrderKey(fmt.Sprint("key", key)), Priority(5))
				require.NoError(t, err)
				ids = append(ids, id)
			}
		}
		for _, id := range ids {
			_, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
		}
		require.Equal(t, map[string]int{"key0": 30, "key1": 30, "key2": 30, "key3": 30}, last)
	})
}

func TestWithoutAQuorumSubmitSaysThatNothingHappened(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		q, err := Open[load](nodes[0], "jobs", Config{})
		require.NoError(t, err)
		w.set(func() { w.noQuorum = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = q.Submit(ctx, load{1})
		require.ErrorIs(t, err, consensus.ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// Two share a command: who gives up first cannot know, and can ask.
		slow, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		alone := make(chan error, flights)
		for range flights {
			w.work.Go(func() { _, err := q.Submit(slow, load{2}); alone <- err })
			pass(time.Millisecond)
		}
		var patient, hasty error
		var wg sync.WaitGroup
		wg.Go(func() { _, patient = q.Submit(context.Background(), load{3}) })
		ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		wg.Go(func() { _, hasty = q.Submit(ctx, load{4}) })
		for range flights {
			require.ErrorIs(t, <-alone, consensus.ErrNoQuorum)
		}
		pass(15 * time.Second)
		w.set(func() { w.noQuorum = false })
		wg.Wait()
		require.NoError(t, patient)
		require.ErrorIs(t, hasty, consensus.ErrUnknown)
		require.ErrorIs(t, hasty, context.DeadlineExceeded)
		unknown, ok := errors.AsType[*UnknownError](hasty)
		require.True(t, ok)
		ids, err := unknown.Retry(t.Context())
		require.NoError(t, err)
		require.Len(t, ids, 1)
		st, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, 2, st.Ready, "the second and the third, and no copy")
	})
}

func TestConcurrencyBoundsTheCluster(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		var mu sync.Mutex
		running, most := 0, 0
		qs, stop := serve(t, nodes, Config{Concurrency: 3}, 4, func(string) Handler[load] {
			return func(context.Context, *Task[load]) error {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				pass(100 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				running--
				return nil
			}
		})
		defer stop()
		for _, id := range submitAll(t, qs[0], 40) {
			_, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
		}
		require.Equal(t, 3, most)
	})
}

func TestNobodyWaitsNobodyWatches(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{}, 4, func(n string) Handler[load] { return runs.handler(n, time.Millisecond) })
		defer stop()
		watching := func() (n int) { w.set(func() { n = len(w.watchers) }); return n }
		ids := submitAll(t, qs[0], 20)
		var wg sync.WaitGroup
		for _, id := range ids {
			wg.Go(func() {
				if _, err := qs[0].Wait(context.Background(), id); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, watching(), "all share one")
		pass(2 * lingerTime)
		require.Zero(t, watching())
		require.NoError(t, errors.Join(func() error { _, err := qs[0].Wait(t.Context(), ids[0]); return err }()))
	})
}
