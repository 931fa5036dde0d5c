package workqueue

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func samples() []message {
	return []message{
		&stealRequest{queue: "q", ask: 7, ack: 1 << 40, want: 256},
		&stealAnswer{start: 1 << 63, seq: 3, left: 12, tasks: []parcel{
			{number: 1, claim: 2, attempt: 3, failed: 1, submitted: 1 << 60, left: time.Second, payload: []byte("payload")},
			{number: 2, claim: 3, attempt: 1, checkpoint: []byte("check")},
		}},
		&report{queue: "q", start: 9, ends: []ended{
			{number: 1, claim: 2, verdict: verdict{end: done, result: []byte("result")}},
			{number: 3, claim: 4, verdict: verdict{end: retry, delay: time.Hour, err: "why", checkpoint: []byte("check")}},
		}},
		&feed{queue: "q", origin: "node"},
		&waitRequest{queue: "q", start: 1, number: 2},
		&waitAnswer{finished: true, Result: Result{State: "done", Value: []byte("v"), Attempts: 2, Node: "n"}},
	}
}

func empty(m message) message {
	switch m.(type) {
	case *stealRequest:
		return new(stealRequest)
	case *stealAnswer:
		return new(stealAnswer)
	case *report:
		return new(report)
	case *feed:
		return new(feed)
	case *waitRequest:
		return new(waitRequest)
	}
	return new(waitAnswer)
}

func TestMessagesComeOutAsTheyWentIn(t *testing.T) {
	for _, m := range samples() {
		raw := pack(m)
		got := empty(m)
		require.NoError(t, unpack(raw, got))
		require.Equal(t, raw, pack(got))
		for n := range raw {
			require.Error(t, unpack(raw[:n], empty(m)), "%T cut to %d bytes", m, n)
		}
		require.Error(t, unpack(append(raw, 0), empty(m)))
	}
}

func FuzzMessages(f *testing.F) {
	for i, m := range samples() {
		f.Add(uint8(i), pack(m))
	}
	f.Fuzz(func(t *testing.T, kind uint8, raw []byte) {
		m := empty(samples()[int(kind)%len(samples())])
		if unpack(raw, m) != nil {
			return
		}
		again := empty(m)
		require.NoError(t, unpack(pack(m), again))
		require.True(t, bytes.Equal(pack(m), pack(again)))
	})
}

func FuzzTaskID(f *testing.F) {
	f.Add("d1f")
	f.Add(string(volatileID("node-1", 1<<63, 77)))
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := TaskID(s).durable(); ok {
			again, ok := durableID(n).durable()
			require.True(t, ok && again == n)
		}
		if node, start, number, ok := TaskID(s).volatile(); ok {
			n2, s2, k2, ok := volatileID(node, start, number).volatile()
			require.True(t, ok && n2 == node && s2 == start && k2 == number)
		}
	})
}

// Seen to fail when take moves the head without a swap.
func TestTheInboxGivesEachJobOnceAndInOrder(t *testing.T) {
	var q inbox
	q.init()
	const pushers, each = 4, 5000
	var taken [pushers * each]atomic.Int32
	var left atomic.Int64
	left.Store(pushers * each)
	var wg sync.WaitGroup
	for p := range pushers {
		wg.Go(func() {
			for i := range each {
				q.push(&job{number: uint64(p*each + i)})
			}
		})
		wg.Go(func() {
			last := [pushers]uint64{}
			for left.Load() > 0 {
				j := q.take()
				if j == nil {
					continue
				}
				left.Add(-1)
				taken[j.number].Add(1)
				if from := j.number / each; j.number+1 <= last[from] {
					t.Errorf("job %d after %d", j.number, last[from]-1)
				} else {
					last[from] = j.number + 1
				}
			}
		})
	}
	wg.Wait()
	for i := range taken {
		require.EqualValues(t, 1, taken[i].Load(), "job %d", i)
	}
	require.Nil(t, q.take())
}
