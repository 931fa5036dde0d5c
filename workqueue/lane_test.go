package workqueue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

// hands is an origin whose thief is the test.
func hands(t *testing.T, f func(v *volatile, ids []TaskID, ask func(ask, ack uint64, want int) *stealAnswer)) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		ids, err := q.SubmitAll(t.Context(), loads(4))
		require.NoError(t, err)
		v := q.bench.keeper.(*volatile)
		f(v, ids, func(ask, ack uint64, want int) *stealAnswer {
			raw := v.give("thief", 1, &stealRequest{queue: "jobs", ask: ask, ack: ack, want: want})
			if raw == nil {
				return nil
			}
			var a stealAnswer
			require.NoError(t, unpack(raw, &a))
			return &a
		})
	})
}

func numbers(a *stealAnswer) (n []uint64) {
	for _, t := range a.tasks {
		n = append(n, t.number)
	}
	return n
}

func TestACopyOfAnAskGetsACopyOfTheAnswer(t *testing.T) {
	hands(t, func(v *volatile, _ []TaskID, ask func(ask, ack uint64, want int) *stealAnswer) {
		first := ask(1, 0, 8)
		require.Equal(t, []uint64{1, 2}, numbers(first), "half")
		require.Equal(t, first, ask(1, 0, 8))
		require.Equal(t, 2, first.left)
		second := ask(2, first.seq, 8)
		require.Equal(t, []uint64{3}, numbers(second))
		require.Nil(t, ask(1, 0, 8), "late")
	})
}

func TestAChunkThatDidNotArriveIsTakenBack(t *testing.T) {
	hands(t, func(v *volatile, _ []TaskID, ask func(ask, ack uint64, want int) *stealAnswer) {
		lost := ask(1, 0, 8)
		none := ask(2, 0, 0)
		require.Empty(t, none.tasks)
		require.Equal(t, 4, none.left)
		v.settle("thief", &report{ends: []ended{{lost.tasks[0].number, lost.tasks[0].claim, verdict{end: done}}}})
		st, err := v.stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Ready: 4}, st, "a report from nowhere changes nothing")
		again := ask(3, none.seq, 8)
		require.Equal(t, []uint64{3, 4}, numbers(again))
		require.Equal(t, 1, again.tasks[0].attempt)
	})
}

func TestAReportOfAnEarlierHandOverChangesNothing(t *testing.T) {
	hands(t, func(v *volatile, ids []TaskID, ask func(ask, ack uint64, want int) *stealAnswer) {
		first := ask(1, 0, 1).tasks[0]
		back := &report{ends: []ended{{first.number, first.claim, verdict{end: snooze}}}}
		v.settle("thief", back)
		var second parcel
		for n := uint64(2); second.number != first.number; n++ {
			second = ask(n, n-1, 1).tasks[0]
		}
		require.Equal(t, first.attempt, second.attempt)
		require.NotEqual(t, first.claim, second.claim)
		v.settle("thief", back)
		v.settle("thief", &report{ends: []ended{{first.number, first.claim, verdict{end: dead, err: "late"}}}})
		v.settle("other", &report{ends: []ended{{second.number, second.claim, verdict{end: dead, err: "not his"}}}})
		v.settle("thief", &report{ends: []ended{{second.number, second.claim, verdict{end: done}}}})
		v.settle("thief", &report{ends: []ended{{second.number, second.claim, verdict{end: dead, err: "twice"}}}})
		r, err := v.wait(t.Context(), ids[first.number-1])
		require.NoError(t, err)
		require.Equal(t, Result{State: "done", Attempts: 1, Node: "thief"}, r)
	})
}

func TestAThiefOfAnOlderBootGetsNothing(t *testing.T) {
	hands(t, func(v *volatile, _ []TaskID, ask func(ask, ack uint64, want int) *stealAnswer) {
		require.Len(t, ask(1, 0, 1).tasks, 1)
		raw := v.give("thief", 2, &stealRequest{queue: "jobs", ask: 1, want: 1})
		var a stealAnswer
		require.NoError(t, unpack(raw, &a))
		require.Len(t, a.tasks, 1)
		require.Nil(t, ask(2, 1, 1), "from before its restart")
		st, err := v.stats(t.Context())
		require.NoError(t, err)
		require.Equal(t, Stats{Ready: 3, Running: 1}, st)
	})
}

// The news of a claim may come after the ledger was asked and the claim handed back.
func TestLateNewsOfAClaimThatWasHandedBackIsNoNews(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes, Config{}, 1, func(n string) Handler[load] { return runs.handler(n, time.Millisecond) })
		defer stop()
		pass(time.Second)
		h := qs[0].bench.keeper.(*durable).holding()
		task := machine.Assigned{ID: 77, Claim: 99, Attempt: 1, Payload: []byte{0x81, 0xa1, 'N', 1}}
		a := machine.Assignment{Queue: "jobs", Tasks: []machine.Assigned{task}, Want: 1}
		h.compare(a, nil)
		h.assigned(a)
		synctest.Wait()
		pass(time.Second)
		require.Zero(t, runs.count())
		a.Tasks[0].Claim = 100
		h.assigned(a)
		h.assigned(a)
		pass(time.Second)
		require.Equal(t, 1, runs.count(), "the next claim is news, once")
		runs.noAttemptTwice(t)
	})
}

func TestNewsThatOvertakeAnEmptyAnswerAreNotForgotten(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		qs, stop := serve(t, nodes[1:], Config{Mode: Volatile}, 1, func(n string) Handler[load] { return runs.handler(n, 0) })
		defer stop()
		pass(time.Minute)
		o := qs[0].bench.keeper.(*volatile).thief.at("n0")
		o.mu.Lock()
		o.asking, o.fed = true, false
		o.mu.Unlock()
		o.thief.queue.fed("n0")
		o.answered(&stealAnswer{}, nil, 1, time.Now())
		standing, wait := o.look(time.Now())
		require.Equal(t, wealthy, standing)
		require.LessOrEqual(t, wait, maxPause)
	})
}

func TestAFullOutboxStopsStealingUntilItIsTold(t *testing.T) {
	bubble(t, 2, func(t *testing.T, w *world, nodes []*node) {
		runs := newRuns()
		_, stop := serve(t, nodes[1:], Config{Mode: Volatile}, 4, func(n string) Handler[load] { return runs.handler(n, 0) })
		defer stop()
		q, err := Open[load](nodes[0], "jobs", Config{Mode: Volatile})
		require.NoError(t, err)
		w.set(func() { w.slow = methodDone })
		const n = 3 * maxOutbox
		began := time.Now()
		ids, err := q.SubmitAll(t.Context(), loads(n))
		require.NoError(t, err)
		for _, id := range ids {
			_, err := q.Wait(t.Context(), id)
			require.NoError(t, err)
		}
		require.Equal(t, n, runs.count())
		require.Less(t, time.Since(began), 30*time.Second)
		runs.noAttemptTwice(t)
	})
}
