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

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/kv"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/workqueue"
)

// QU-10: a worker cut off for longer than its lease stops before the next one starts.
func TestAnIsolatedWorkerStopsBeforeItsTaskStartsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(short))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		type run struct {
			node       int
			began, end time.Time
			attempt    int
		}
		var mu sync.Mutex
		var runs []run
		queues := make([]*workqueue.Queue[string], 3)
		for i := range 3 {
			q, err := workqueue.Open[string](c.Node(i), "q", workqueue.Config{Lease: 4 * time.Second})
			require.NoError(t, err)
			queues[i] = q
			wg.Go(func() {
				_ = q.Handle(ctx, func(ctx context.Context, task *workqueue.Task[string]) error {
					r := run{node: i, began: time.Now(), attempt: task.Attempt}
					if r.attempt == 1 {
						<-ctx.Done()
					}
					r.end = time.Now()
					mu.Lock()
					defer mu.Unlock()
					runs = append(runs, r)
					return ctx.Err()
				}, workqueue.Workers{N: 1})
			})
		}
		id, err := queues[0].Submit(t.Context(), "x")
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		worker := -1
		s, err := queues[0].Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, s.Running)
		for i := range 3 { // one of them runs it: the other two are cut from nothing
			c.Isolate(i)
			time.Sleep(3900 * time.Millisecond)
			synctest.Wait()
			mu.Lock()
			stopped := len(runs) > 0
			mu.Unlock()
			if stopped {
				worker = i
				break
			}
			c.Heal()
			time.Sleep(5 * time.Second)
		}
		require.NotEqual(t, -1, worker, "the isolated worker never stopped")
		res, err := queues[(worker+1)%3].Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "done", res.State)
		require.NotEqual(t, fmt.Sprint("n", worker), res.Node)
		mu.Lock()
		require.Len(t, runs, 2)
		require.Equal(t, worker, runs[0].node)
		require.True(t, runs[0].end.Before(runs[1].began), "the first ended at %v, the second began at %v", runs[0].end, runs[1].began)
		mu.Unlock()
		c.Heal()
		time.Sleep(5 * time.Second)
		res, err = queues[worker].Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, "done", res.State, "the zombie's report changes nothing")
	})
}

// QU-08: a task that panics each time ends dead; all others are done.
func TestAPoisonTaskHarmsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var q *workqueue.Queue[int]
		for i := range 3 {
			mine, err := workqueue.Open[int](c.Node(i), "q", workqueue.Config{MaxAttempts: 3, Backoff: func(int, error) time.Duration { return 50 * time.Millisecond }})
			require.NoError(t, err)
			q = mine
			wg.Go(func() {
				_ = mine.Handle(ctx, func(_ context.Context, task *workqueue.Task[int]) error {
					if task.Payload == 7 {
						panic("poison")
					}
					return nil
				}, workqueue.Workers{N: 4})
			})
		}
		ids, err := q.SubmitAll(t.Context(), func(yield func(int, []workqueue.TaskOption) bool) {
			for i := range 50 {
				if !yield(i, nil) {
					return
				}
			}
		})
		require.NoError(t, err)
		for i, id := range ids {
			r, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
			if i == 7 {
				require.Equal(t, "dead", r.State)
				require.Equal(t, 3, r.Attempts)
				continue
			}
			require.Equal(t, "done", r.State)
		}
	})
}

// QU-01, QU-07: the submitter is cut off while it submits, the workers go on.
func TestSubmitsAcrossAPartitionRunAsOftenAsTheySay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3, nodetest.Configure(short))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		var mu sync.Mutex
		done := map[string]int{}
		queues := make([]*workqueue.Queue[string], 3)
		for i := range 3 {
			q, err := workqueue.Open[string](c.Node(i), "q", workqueue.Config{Lease: 4 * time.Second, MaxAttempts: 100})
			require.NoError(t, err)
			queues[i] = q
			wg.Go(func() {
				_ = q.Handle(ctx, func(ctx context.Context, task *workqueue.Task[string]) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(3 * time.Millisecond):
					}
					mu.Lock()
					defer mu.Unlock()
					done[task.Payload]++
					return nil
				}, workqueue.Workers{N: 4})
			})
		}
		sure, maybe := map[string]workqueue.TaskID{}, map[string]bool{}
		var submitters sync.WaitGroup
		for i, q := range queues {
			submitters.Go(func() {
				for k := range 150 {
					name := fmt.Sprintf("%d/%d", i, k)
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
					id, err := q.Submit(ctx, name)
					cancel()
					mu.Lock()
					switch {
					case err == nil:
						sure[name] = id
					case errors.Is(err, consensus.ErrUnknown):
						maybe[name] = true
					case !errors.Is(err, consensus.ErrNoQuorum):
						t.Error(err)
					}
					mu.Unlock()
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		for i := range 3 {
			time.Sleep(800 * time.Millisecond)
			c.Isolate(i)
			time.Sleep(1500 * time.Millisecond)
			c.Heal()
		}
		submitters.Wait()
		for name, id := range sure {
			r, err := queues[0].Wait(t.Context(), id)
			require.NoError(t, err, name)
			require.Equal(t, "done", r.State)
		}
		time.Sleep(10 * time.Second)
		s, err := queues[1].Stats(t.Context())
		require.NoError(t, err)
		require.Zero(t, s.Ready+s.Running+s.Retry+s.Scheduled, "%+v", s)
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, len(sure), 250)
		for name := range done {
			require.True(t, sure[name] != "" || maybe[name], "%s was refused and ran", name)
		}
		require.GreaterOrEqual(t, s.Done, len(sure))
		require.LessOrEqual(t, s.Done, len(sure)+len(maybe))
	})
}

// KV-05, KV-08: a slow watcher on a node that is cut off and whose leaders change
// sees every change once and in order.
func TestAWatchSurvivesLeadersAndSlowReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 4, nodetest.Configure(func(i int, cfg *node.Config) { cfg.NonVoter, cfg.Expect = i == 3, 3 }))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const total = 600
		var wg sync.WaitGroup
		for i, pause := range map[int]time.Duration{0: 0, 1: 20 * time.Millisecond, 3: 5 * time.Millisecond} {
			began := make(chan struct{})
			begin := sync.OnceFunc(func() { close(began) })
			wg.Go(func() {
				next, last := 0, kv.Rev(0)
				for ch, err := range c.Node(i).KV("w/").Watch(ctx, "") {
					if err != nil {
						t.Errorf("n%d: %v", i, err)
						return
					}
					if ch.Kind == kv.Synced {
						begin()
					}
					if ch.Kind != kv.Put {
						continue
					}
					if string(ch.Entry.Value) != fmt.Sprint(next) || ch.Rev <= last {
						t.Errorf("n%d: %s at %d after %d, want %d", i, ch.Entry.Value, ch.Rev, last, next)
						return
					}
					last = ch.Rev
					if next++; next == total {
						return
					}
					time.Sleep(pause)
				}
			})
			<-began
		}
		for k := range total {
			if k%60 == 30 {
				c.Heal()
				c.Isolate(k / 60 % 3) // leading or not, and the one that serves n3 or not
			}
			if k%60 == 45 {
				time.Sleep(8 * time.Second) // long enough to be missed
			}
			who := 0
			if err := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				for {
					short, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
					_, err := c.Node(who).KV("w/").Put(short, fmt.Sprint("k", k%7), fmt.Append(nil, k))
					cancel()
					var unknown *consensus.UnknownError
					if errors.As(err, &unknown) {
						c.Heal()
						return unknown.Retry(ctx)
					}
					if err == nil || ctx.Err() != nil {
						return err
					}
					who = (who + 1) % 3
				}
			}(); err != nil {
				t.Fatal(k, err)
			}
		}
		c.Heal()
		wg.Wait()
	})
}
