package workqueue

import (
	"context"
	"errors"
	"iter"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

func TestTasksSubmittedOnOneNodeRunOnAll(t *testing.T) {
	inBothModes(t, 3, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: mode}, 4, func(n string) Handler[load] { return runs.handler(n, 25*time.Millisecond) })
		defer stop()
		const n = 600
		began := time.Now()
		for k, id := range submitAll(t, qs[0], n) {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, 1, r.Attempts)
			var twice int
			require.NoError(t, r.Into(&twice))
			require.Equal(t, 2*k, twice)
		}
		took := time.Since(began)
		for _, node := range nodes {
			require.GreaterOrEqual(t, runs.startedOn(node.peer.name), n/5)
		}
		runs.noAttemptTwice(t)
		require.Equal(t, n, runs.count())
		require.Less(t, took, 1400*time.Millisecond, "1.25 s of work for three nodes")
	})
}

func TestTasksSurviveTheirWorker(t *testing.T) {
	inBothModes(t, 3, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: mode, Lease: 3 * time.Second}, 4, func(n string) Handler[load] { return runs.handler(n, 50*time.Millisecond) })
		defer stop()
		const n = 400
		ids := submitAll(t, qs[0], n)
		pass(500 * time.Millisecond)
		before := runs.count()
		require.Less(t, before, n/2)
		nodes[2].kill()
		time.AfterFunc(time.Second, func() { w.bury(nodes[2]) })
		again := 0
		for _, id := range ids {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Empty(t, r.Err)
			again += r.Attempts - 1
		}
		require.Equal(t, n, runs.count())
		require.GreaterOrEqual(t, again, 4, "it had at least what it was running")
		runs.noAttemptTwice(t)
	})
}

func TestFailingTasksRetryThenDie(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		cfg := Config{Mode: mode, MaxAttempts: 3, Backoff: func(attempt int, err error) time.Duration { return time.Duration(attempt) * time.Second }}
		var mu sync.Mutex
		starts := map[int][]time.Duration{}
		began := time.Now()
		h := func(ctx context.Context, task *Task[load]) error {
			mu.Lock()
			starts[task.Payload.N] = append(starts[task.Payload.N], time.Since(began))
			first := len(starts[task.Payload.N]) == 1
			mu.Unlock()
			switch task.Payload.N {
			case 1:
				if task.Attempt < 3 {
					return errors.New("not yet")
				}
				return task.SetResult("at last")
			case 2:
				return errors.New("never")
			case 3:
				panic("boom")
			case 4:
				return Dead(errors.New("hopeless"))
			case 5:
				return Discard(errors.New("not worth it"))
			case 6:
				runtime.Goexit()
			case 7:
				if first {
					return Snooze(time.Minute)
				}
			case 8:
				if task.Attempt == 1 {
					return RetryAfter(2*time.Minute, errors.New("later"))
				}
			case 9:
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		cfg.Timeout = 10 * time.Second
		qs, stop := serve(t, nodes, cfg, 2, func(string) Handler[load] { return h })
		defer stop()
		want := map[int]Result{
			1: {State: "done", Attempts: 3},
			2: {State: "dead", Attempts: 3, Err: "never"},
			3: {State: "dead", Attempts: 3, Err: "handler panicked: boom"},
			4: {State: "dead", Attempts: 1, Err: "hopeless"},
			5: {State: "discarded", Attempts: 1, Err: "not worth it"},
			6: {State: "dead", Attempts: 3, Err: "handler ended its goroutine"},
			7: {State: "done", Attempts: 1},
			8: {State: "done", Attempts: 2},
			9: {State: "dead", Attempts: 3, Err: ErrTimeout.Error()},
		}
		ids := map[int]TaskID{}
		for k := range want {
			id, err := qs[0].Submit(t.Context(), load{k})
			require.NoError(t, err)
			ids[k] = id
		}
		for k, id := range ids {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, want[k].State, r.State, "task %d: %+v", k, r)
			require.Equal(t, want[k].Attempts, r.Attempts, "task %d: %+v", k, r)
			require.Equal(t, want[k].Err, r.Err, "task %d", k)
		}
		mu.Lock()
		defer mu.Unlock()
		require.GreaterOrEqual(t, starts[2][1]-starts[2][0], time.Second)
		require.GreaterOrEqual(t, starts[2][2]-starts[2][1], 2*time.Second)
		st, err := qs[0].Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Dead: 5, Done: 4}, st)
	})
}

func TestCheckpointsReachTheNextAttempt(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		qs, stop := serve(t, nodes[1:], Config{Mode: mode}, 1, func(string) Handler[load] {
			return func(_ context.Context, task *Task[load]) error {
				var at int
				found, err := task.Resume(&at)
				if err != nil {
					return Dead(err)
				}
				if found != (task.Attempt > 1) {
					return Dead(errors.New("a checkpoint is missing, or from nowhere"))
				}
				if at == 3 {
					return task.SetResult(at)
				}
				return RetryAfter(0, errors.Join(errors.New("more"), task.Checkpoint(at+1)))
			}
		})
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{Mode: mode})
		require.NoError(t, err)
		id, err := q.Submit(t.Context(), load{1})
		require.NoError(t, err)
		r, err := q.Wait(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, 4, r.Attempts)
		require.Empty(t, r.Err)
		_ = qs
	})
}

func TestWaitWorksFromEveryNode(t *testing.T) {
	inBothModes(t, 3, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: mode, Retention: time.Minute}, 1, func(n string) Handler[load] { return runs.handler(n, 20*time.Second) })
		defer stop()
		id, err := qs[0].Submit(t.Context(), load{21})
		require.NoError(t, err)
		for _, q := range append(qs, qs...) { // while it runs, and when it is done
			r, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
			var v int
			require.NoError(t, r.Into(&v))
			require.Equal(t, 42, v)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		next, err := qs[0].Submit(ctx, load{1})
		require.NoError(t, err)
		for _, q := range qs {
			_, err = q.Wait(ctx, next)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		for _, q := range qs {
			for _, bad := range []TaskID{"", "d", "v", "dffff", "v0-0-n0", id + "0", "x" + id} {
				_, err := q.Wait(t.Context(), bad)
				require.ErrorIs(t, err, ErrNotFound, "%q", bad)
			}
		}
		pass(3 * time.Minute)
		for _, q := range qs {
			_, err := q.Wait(t.Context(), id)
			require.ErrorIs(t, err, ErrNotFound, "its retention has passed")
		}
	})
}

func TestDelayedTasksStartOnTimeAndLateOnesDie(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		began := time.Now()
		qs, stop := serve(t, nodes, Config{Mode: mode}, 1, func(string) Handler[load] {
			return func(ctx context.Context, task *Task[load]) error {
				err := task.SetResult(int(time.Since(began).Seconds()))
				pass(time.Duration(task.Payload.N) * time.Second)
				return err
			}
		})
		defer stop()
		delayed, err := qs[0].Submit(t.Context(), load{0}, Delay(30*time.Second))
		require.NoError(t, err)
		at, err := qs[0].Submit(t.Context(), load{0}, At(began.Add(50*time.Second)), Deadline(began.Add(55*time.Second)))
		require.NoError(t, err)
		for id, want := range map[TaskID]int{delayed: 30, at: 50} {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			var got int
			require.NoError(t, r.Into(&got))
			require.Equal(t, want, got)
		}
		for range 4 {
			_, err = qs[0].Submit(t.Context(), load{60})
			require.NoError(t, err)
		}
		pass(10 * time.Second) // nobody keeps tasks ahead of long ones any more
		late, err := qs[0].Submit(t.Context(), load{0}, Deadline(time.Now().Add(10*time.Second)))
		require.NoError(t, err)
		r, err := qs[0].Wait(t.Context(), late)
		require.NoError(t, err)
		require.Equal(t, "dead", r.State)
		require.Equal(t, "deadline", r.Err)
	})
}

func TestAFullQueueRefuses(t *testing.T) {
	inBothModes(t, 1, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		q, err := Open[load](nodes[0], "jobs", Config{Mode: mode, MaxReady: 10})
		require.NoError(t, err)
		var mu sync.Mutex
		taken, full := 0, 0
		var wg sync.WaitGroup
		for k := range 15 { // they share commits, and one that does not fit spoils no other
			wg.Go(func() {
				_, err := q.Submit(context.Background(), load{k})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					taken++
				} else if errors.Is(err, ErrFull) {
					full++
				} else {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 10, taken)
		require.Equal(t, 5, full)
		_, err = q.SubmitAll(t.Context(), loads(1))
		require.ErrorIs(t, err, ErrFull)
	})
}

func loads(n int) iter.Seq2[load, []TaskOption] {
	return func(yield func(load, []TaskOption) bool) {
		for k := range n {
			if !yield(load{k}, nil) {
				return
			}
		}
	}
}

func TestSubmitAllIsOneCommit(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: mode, MaxReady: 100}, 4, func(n string) Handler[load] { return runs.handler(n, time.Millisecond) })
		defer stop()
		ids, err := qs[0].SubmitAll(t.Context(), loads(100))
		require.NoError(t, err)
		require.Len(t, ids, 100)
		if mode == Durable {
			require.Equal(t, 1, w.commands(machine.OpSubmit))
		}
		for k, id := range ids {
			r, err := qs[1].Wait(t.Context(), id)
			require.NoError(t, err)
			var got int
			require.NoError(t, r.Into(&got))
			require.Equal(t, 2*k, got, "the ids are in the order of the tasks")
		}
		_, err = qs[0].SubmitAll(t.Context(), loads(101))
		require.ErrorIs(t, err, ErrFull)
		st, err := qs[0].Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Done: 100}, st, "all or none")
		none, err := qs[0].SubmitAll(t.Context(), loads(0))
		require.NoError(t, err)
		require.Empty(t, none)
	})
}

func TestHandleReturnsWhenItsHandlersHave(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		q, err := Open[load](nodes[0], "jobs", Config{Mode: mode})
		require.NoError(t, err)
		_, err = q.SubmitAll(t.Context(), loads(20))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		running := make(chan struct{}, 20)
		ended := make(chan error, 1)
		w.work.Go(func() {
			ended <- q.Handle(ctx, func(ctx context.Context, task *Task[load]) error {
				running <- struct{}{}
				if task.Payload.N == 0 { // one ends by itself, the others wait for the end of their ctx
					pass(5 * time.Second)
					return nil
				}
				<-ctx.Done()
				return context.Cause(ctx)
			}, Workers{N: 3, Drain: 10 * time.Second})
		})
		for range 3 {
			<-running
		}
		cancel()
		require.NoError(t, <-ended)
		require.InDelta(t, 10, time.Since(began).Seconds(), 0.1)
		require.Empty(t, running, "nothing was started after the end of ctx")
		pass(time.Second)
		st, err := q.Stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Ready: 19, Done: 1}, st, "what was not done was handed back")

		runs := newRuns()
		other, stop := serve(t, nodes[1:], Config{Mode: mode}, 4, func(n string) Handler[load] { return runs.handler(n, time.Millisecond) })
		pass(time.Second)
		require.Equal(t, 19, runs.count(), "and another node has done it")
		stop()
		_ = other
	})
}

func TestDrainHandsBackAndCloses(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{Mode: mode, Lease: time.Hour}, 4, func(n string) Handler[load] { return runs.handler(n, 30*time.Millisecond) })
		defer stop()
		ids := submitAll(t, qs[0], 200)
		pass(300 * time.Millisecond)
		require.NoError(t, nodes[1].Drain(t.Context()))
		require.NoError(t, nodes[1].Drain(t.Context()), "again is no error")
		if mode == Volatile {
			_, err := qs[1].Submit(t.Context(), load{1000})
			require.ErrorIs(t, err, consensus.ErrClosed)
		}
		before := runs.startedOn("n1")
		require.Greater(t, before, 10)
		for _, id := range ids {
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, 1, r.Attempts, "none was lost with the node")
		}
		require.Equal(t, before, runs.startedOn("n1"))
		runs.noAttemptTwice(t)
		require.ErrorIs(t, qs[1].Handle(t.Context(), runs.handler("n1", 0), Workers{}), consensus.ErrClosed)
		_, err := Open[load](nodes[1], "other", Config{Mode: mode})
		require.ErrorIs(t, err, consensus.ErrClosed)
	})
}

func TestCloseEndsEverything(t *testing.T) {
	inBothModes(t, 2, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		qs, stop := serve(t, nodes, Config{Mode: mode}, 2, func(string) Handler[load] {
			return func(ctx context.Context, _ *Task[load]) error {
				<-ctx.Done()
				if context.Cause(ctx) != consensus.ErrClosed {
					t.Errorf("cause %v", context.Cause(ctx))
				}
				return context.Cause(ctx)
			}
		})
		ids := submitAll(t, qs[0], 8)
		_, err := qs[0].Submit(t.Context(), load{9}, Delay(time.Hour))
		require.NoError(t, err)
		waited := make(chan error, 1)
		w.work.Go(func() { _, err := qs[0].Wait(context.Background(), ids[0]); waited <- err })
		pass(time.Second)
		for _, n := range nodes {
			require.NoError(t, n.Close())
			require.NoError(t, n.Close())
		}
		stop()
		require.ErrorIs(t, <-waited, consensus.ErrClosed)
		_, err = qs[0].Submit(t.Context(), load{1})
		require.ErrorIs(t, err, consensus.ErrClosed)
	})
}

func TestCancelEndsATask(t *testing.T) {
	inBothModes(t, 1, func(t *testing.T, w *world, nodes []*node, mode Mode) {
		causes := make(chan error, 10)
		qs, stop := serve(t, nodes, Config{Mode: mode}, 1, func(string) Handler[load] {
			return func(ctx context.Context, _ *Task[load]) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Minute):
				}
				causes <- context.Cause(ctx)
				return nil
			}
		})
		defer stop()
		running, err := qs[0].Submit(t.Context(), load{1})
		require.NoError(t, err)
		pass(time.Second)
		queued, err := qs[0].Submit(t.Context(), load{2})
		require.NoError(t, err)
		delayed, err := qs[0].Submit(t.Context(), load{3}, Delay(time.Hour))
		require.NoError(t, err)
		for started, id := range []TaskID{delayed, queued, running} {
			started /= 2
			require.NoError(t, qs[0].Cancel(t.Context(), id, "no more"))
			r, err := qs[0].Wait(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "cancelled", r.State)
			require.Equal(t, "no more", r.Err)
			require.Equal(t, started, r.Attempts)
			require.ErrorIs(t, qs[0].Cancel(t.Context(), id, "again"), ErrNotFound)
		}
		if mode == Durable {
			require.ErrorIs(t, <-causes, ErrCancelled)
		}
		pass(3 * time.Minute)
		require.LessOrEqual(t, len(causes), 1, "no other was started")
	})
}

func TestWhatCannotWorkIsRefusedBeforeAnythingIsSent(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		for _, name := range []string{"", "a\nb", strings.Repeat("x", 257), "\xff"} {
			_, err := Open[load](nodes[0], name, Config{})
			var bad *NameError
			require.ErrorAs(t, err, &bad)
			require.ErrorIs(t, err, consensus.ErrInvalid)
		}
		for _, cfg := range []Config{{Mode: 7}, {MaxAttempts: -1}, {Lease: -1}, {Timeout: -1}, {MaxReady: -1}, {Retention: -1}, {Concurrency: -1}, {Mode: Volatile, Concurrency: 1}, {Steal: Steal{Batch: -1}}} {
			_, err := Open[load](nodes[0], "q", cfg)
			var bad *ConfigError
			require.ErrorAs(t, err, &bad, "%+v", cfg)
		}
		d, err := Open[[]byte](nodes[0], "durable", Config{})
		require.NoError(t, err)
		v, err := Open[[]byte](nodes[0], "volatile", Config{Mode: Volatile})
		require.NoError(t, err)
		_, err = Open[[]byte](nodes[0], "volatile", Config{})
		require.ErrorIs(t, err, consensus.ErrInvalid, "another mode")
		for _, q := range []*Queue[[]byte]{d, v} {
			_, err := q.Submit(t.Context(), make([]byte, 1<<20))
			var large *SizeError
			require.ErrorAs(t, err, &large)
			_, err = q.SubmitAll(t.Context(), func(yield func([]byte, []TaskOption) bool) {
				for range 5 {
					if !yield(make([]byte, 300<<10), nil) {
						return
					}
				}
			})
			require.ErrorAs(t, err, &large)
			require.ErrorIs(t, q.Handle(t.Context(), nil, Workers{N: -1}), consensus.ErrInvalid)
		}
		for _, o := range []TaskOption{Priority(10), Priority(-1), Unique("", time.Hour), Unique("k", 0), OrderKey(""), OrderKey(strings.Repeat("k", 300))} {
			_, err := d.Submit(t.Context(), nil, o)
			require.ErrorIs(t, err, consensus.ErrInvalid)
		}
		for _, o := range []TaskOption{Priority(1), Unique("k", time.Hour), OrderKey("k")} {
			_, err := v.Submit(t.Context(), nil, o)
			var bad *OptionError
			require.ErrorAs(t, err, &bad)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, q := range []*Queue[[]byte]{d, v} {
			_, err := q.Submit(ended, nil)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, consensus.ErrNoQuorum)
		}
		require.Zero(t, w.commands(machine.OpSubmit))
	})
}

func TestModesPrint(t *testing.T) {
	require.Equal(t, "durable volatile mode 9", Durable.String()+" "+Volatile.String()+" "+Mode(9).String())
}

// stamp encodes itself.
type stamp struct{ t time.Time }

func (s stamp) MarshalBinary() ([]byte, error) { return []byte(s.t.Format(time.RFC3339)), nil }
func (s *stamp) UnmarshalBinary(b []byte) (err error) {
	s.t, err = time.Parse(time.RFC3339, string(b))
	return err
}

func TestPayloadsThatEncodeThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.node("n0", 1)
		q, err := Open[stamp](n, "stamps", Config{Mode: Volatile})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		w.work.Go(func() {
			q.Handle(ctx, func(_ context.Context, task *Task[stamp]) error { return task.SetResult(task.Payload.t.Year()) }, Workers{N: 1})
		})
		id, err := q.Submit(t.Context(), stamp{time.Date(1976, 1, 2, 3, 4, 5, 0, time.UTC)})
		require.NoError(t, err)
		r, err := q.Wait(t.Context(), id)
		require.NoError(t, err)
		var year int
		require.NoError(t, r.Into(&year))
		require.Equal(t, 1976, year)
		cancel()
		require.NoError(t, n.Close())
		w.close()
	})
}
