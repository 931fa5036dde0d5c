package transport

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport/memnet"
)

func TestCallCarriesItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("left", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
			end, ok := ctx.Deadline()
			if !ok {
				return []byte("for ever"), nil
			}
			return []byte(time.Until(end).String()), nil
		})
		resp, err := a.Call(within(t, 700*time.Millisecond), "b", "left", nil)
		require.NoError(t, err)
		left, err := time.ParseDuration(string(resp))
		require.NoError(t, err)
		require.Greater(t, left, 690*time.Millisecond)
		require.Less(t, left, 699*time.Millisecond, "dialing took the rest")
		resp, err = a.Call(t.Context(), "b", "left", nil)
		require.NoError(t, err)
		require.Equal(t, "for ever", string(resp))
	})
}

func TestCancelEndsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		ended := make(chan time.Time, 1)
		b.Answer("wait", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
			<-ctx.Done()
			ended <- time.Now()
			return nil, context.Cause(ctx)
		})
		reason := errors.New("changed my mind")
		ctx, cancel := context.WithCancelCause(t.Context())
		var canceled time.Time
		time.AfterFunc(time.Second, func() {
			canceled = time.Now()
			cancel(reason)
		})
		_, err := a.Call(ctx, "b", "wait", nil)
		require.ErrorIs(t, err, reason)
		require.False(t, Unsent(err))
		require.Equal(t, time.Millisecond, (<-ended).Sub(canceled), "one way of the network")
	})
}

func TestDeadlineEndsBothEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		ended := make(chan struct{}, 1)
		b.Answer("wait", func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
			<-ctx.Done()
			ended <- struct{}{}
			return nil, ctx.Err()
		})
		_, err := a.Call(within(t, time.Second), "b", "wait", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.False(t, Unsent(err))
		<-ended
	})
}

func TestErrorsOfHandlersArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("plain", func(context.Context, Peer, []byte) ([]byte, error) { return nil, errors.New("disk is gone") })
		b.Answer("coded", func(context.Context, Peer, []byte) ([]byte, error) {
			return nil, fmt.Errorf("wrapped: %w", &RemoteError{Code: Overloaded, Message: "later"})
		})
		b.Answer("long", func(context.Context, Peer, []byte) ([]byte, error) { return nil, errors.New(strings.Repeat("x", 5000)) })
		b.Answer("huge", func(context.Context, Peer, []byte) ([]byte, error) { return make([]byte, MaxMessage+1), nil })
		for method, want := range map[string]Code{"plain": Internal, "coded": Overloaded, "long": Internal, "huge": Internal, "none": NotFound} {
			_, err := a.Call(within(t, time.Second), "b", method, nil)
			var remote *RemoteError
			require.ErrorAs(t, err, &remote, method)
			require.Equal(t, want, remote.Code, method)
			require.LessOrEqual(t, len(remote.Message), 1024)
			require.Equal(t, method == "none", Unsent(err), method)
			require.Equal(t, method == "coded", errors.Is(err, ErrOverloaded))
		}
		_, err := a.Call(within(t, time.Second), "b", "plain", make([]byte, MaxMessage+1))
		require.ErrorIs(t, err, ErrTooLarge)
		require.True(t, Unsent(err))
		_, err = a.Call(within(t, time.Second), "b", strings.Repeat("m", 65), nil)
		require.ErrorIs(t, err, ErrTooLarge)
	})
}

func TestStreamsOfCallsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("echo", func(_ context.Context, _ Peer, req []byte) ([]byte, error) { return req, nil })
		for range 100 {
			_, err := a.Call(within(t, time.Second), "b", "echo", []byte("x"))
			require.NoError(t, err)
		}
		l := a.current("b", ctl)
		opened, _ := l.counts()
		require.Equal(t, uint64(1), opened)
		var work sync.WaitGroup
		for range 200 {
			work.Go(func() {
				_, err := a.Call(t.Context(), "b", "echo", []byte("x"))
				if err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		time.Sleep(time.Second)
		_, idle := l.counts()
		require.Equal(t, maxIdleStreams, idle)
		time.Sleep(40 * time.Second)
		_, idle = l.counts()
		require.Zero(t, idle)
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Zero(t, b.open[classRPC])
	})
}

func (l *link) counts() (opened uint64, idle int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.opened, len(l.idle)
}

func TestCallsWaitForTheirTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		var running, most atomic.Int64
		b.Answer("slow", func(context.Context, Peer, []byte) ([]byte, error) {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return nil, nil
		})
		var work sync.WaitGroup
		for range 2 * maxCallsToPeer {
			work.Go(func() {
				if _, err := a.Call(t.Context(), "b", "slow", nil); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(500 * time.Millisecond)
		_, err := a.Call(within(t, 100*time.Millisecond), "b", "slow", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, Unsent(err))
		work.Wait()
		require.Equal(t, int64(maxCallsToPeer), most.Load())
	})
}

// A peer that has all the calls it takes says so, and has not looked at the request.
func TestOverloadedPeerRefusesUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("x", func(context.Context, Peer, []byte) ([]byte, error) { return nil, nil })
		b.mu.Lock()
		b.open[classRPC] = classes[classRPC].perNode
		b.mu.Unlock()
		_, err := a.Call(within(t, time.Second), "b", "x", nil)
		require.ErrorIs(t, err, ErrOverloaded)
		require.True(t, Unsent(err))
		b.mu.Lock()
		b.open[classRPC] = 0
		b.mu.Unlock()
		_, err = a.Call(within(t, time.Second), "b", "x", nil)
		require.NoError(t, err)
	})
}

// Unsent must never be true for a call whose handler ran, however the connection ends.
func TestUnsentIsHonest(t *testing.T) {
	for cut := range 40 {
		synctest.Test(t, func(t *testing.T) {
			net, a, b, _ := memPair(t)
			var ran atomic.Int64
			b.Answer("count", func(context.Context, Peer, []byte) ([]byte, error) {
				ran.Add(1)
				time.Sleep(2 * time.Millisecond)
				return nil, nil
			})
			_, err := a.Call(within(t, time.Second), "b", "count", nil)
			require.NoError(t, err)
			ran.Store(0)
			time.AfterFunc(time.Duration(cut)*250*time.Microsecond, func() {
				if cut%2 == 0 {
					_ = a.current("b", ctl).conn.CloseWithError(connShutdown, "")
				} else {
					net.Isolate("10.0.0.2:7000")
				}
			})
			var unsent, lost int64
			var work sync.WaitGroup
			for k := range 20 {
				work.Go(func() {
					time.Sleep(time.Duration(k) * 500 * time.Microsecond)
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					defer cancel()
					_, err := a.Call(ctx, "b", "count", make([]byte, k*5000))
					switch {
					case err != nil && Unsent(err):
						atomic.AddInt64(&unsent, 1)
					case err != nil:
						atomic.AddInt64(&lost, 1)
					}
				})
			}
			work.Wait()
			time.Sleep(time.Second)
			require.LessOrEqual(t, ran.Load(), 20-unsent, "cut %d: a handler ran whose caller was told otherwise", cut)
			require.GreaterOrEqual(t, ran.Load(), 20-unsent-lost)
		})
	}
}

// A connection that ended while nobody used it costs no call.
func TestDeadPooledStreamIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Answer("echo", func(_ context.Context, _ Peer, req []byte) ([]byte, error) { return req, nil })
		for range 10 {
			_, err := a.Call(within(t, time.Second), "b", "echo", []byte("x"))
			require.NoError(t, err)
			_ = b.current("a", ctl).conn.CloseWithError(connShutdown, "")
			time.Sleep(2 * time.Millisecond)
		}
	})
}

func TestCallsSurviveARetiredConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, book := memnet.New(1), &pages{}
		net.SetAll(memnet.Rule{Delay: time.Millisecond})
		a := mem(t, net, "a", 1, "10.0.0.1:7000", book)
		b := mem(t, net, "b", 1, "10.0.0.2:7000", book)
		b.Answer("slow", func(_ context.Context, _ Peer, req []byte) ([]byte, error) {
			time.Sleep(3 * time.Millisecond)
			return req, nil
		})
		ctx := within(t, 5*time.Second)
		var work sync.WaitGroup
		for range 8 {
			work.Go(func() {
				for ctx.Err() == nil {
					if _, err := a.Call(context.Background(), "b", "slow", []byte("x")); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for ctx.Err() == nil {
			time.Sleep(50 * time.Millisecond)
			if l := a.current("b", ctl); l != nil {
				l.retire(connIdle)
			}
			time.Sleep(50 * time.Millisecond)
			if l := b.current("a", ctl); l != nil {
				l.retire(connIdle)
			}
		}
		work.Wait()
	})
}
