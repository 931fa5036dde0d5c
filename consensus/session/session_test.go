package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

func TestTheDefaultSessionIsOpenedAnewAfterASuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake().keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		again, err := k.Default(t.Context())
		require.NoError(t, err)
		require.Same(t, s, again)
		synctest.Wait()
		k.base = k.base.Add(-time.Hour) // what the clock shows after an hour of suspend; no timer has run
		next, err := k.Default(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, s.ID(), next.ID())
		require.True(t, next.Valid())
		require.False(t, s.Valid())
		require.ErrorIs(t, context.Cause(s.Context()), consensus.ErrSessionExpired)
	})
}

func TestASessionWhoseOpeningTookLongIsRenewedBeforeItIsUsed(t *testing.T) {
	for _, late := range []time.Duration{7 * time.Second, 9 * time.Second, time.Minute} { // in time, past belief, past the cluster's end
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			first := true
			f.after = func(ctx context.Context, cmd machine.Cmd) error {
				if cmd.Op == machine.OpOpenSession && first {
					first = false
					time.Sleep(late)
				}
				return nil
			}
			k := f.keeper(t, "a", ttl)
			s, err := k.Default(t.Context())
			require.NoError(t, err)
			require.True(t, s.Valid(), "after %v", late)
			require.True(t, f.open(s), "after %v", late)
			require.Greater(t, time.Until(s.Deadline()), s.life()-time.Second)
			time.Sleep(time.Minute)
			require.True(t, s.Valid())
		})
	}
}

func TestNothingWasSentForWhomNoSessionCouldBeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.before = func(ctx context.Context, cmd machine.Cmd) error {
			<-ctx.Done()
			return &consensus.UnknownError{} // the opening may have happened; the call behind it has not
		}
		k := f.keeper(t, "a", ttl)
		why := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		other := make(chan error, 1)
		go func() { _, err := k.Default(ctx); other <- err }()
		_, err := k.Default(ctx)
		for _, err := range []error{err, <-other} {
			require.ErrorIs(t, err, consensus.ErrNoQuorum)
			require.NotErrorIs(t, err, consensus.ErrUnknown)
			require.ErrorIs(t, err, why)
		}
	})
}

func TestTTLsThatCannotOutliveAChangeOfLeaderAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := f.keeper(t, "a", ttl)
		for _, d := range []time.Duration{-time.Second, 0, 999 * time.Millisecond} {
			_, err := k.Open(t.Context(), d)
			require.ErrorIs(t, err, consensus.ErrInvalid)
		}
		require.Zero(t, f.count(machine.OpOpenSession), "before anything is sent")
	})
}

func TestARenewalWithoutAnAnswerHoldsUpNoOtherSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := f.keeper(t, "a", ttl)
		long, err := k.Open(t.Context(), time.Minute)
		require.NoError(t, err)
		time.Sleep(100 * time.Millisecond)
		short, err := k.Open(t.Context(), time.Second)
		require.NoError(t, err)
		f.set(func() {
			f.before = func(ctx context.Context, cmd machine.Cmd) error {
				var a machine.KeepAlive
				if cmd.Op == machine.OpKeepAlive && machine.Decode(cmd.Body, &a) == nil && a.Sessions[0] == long.id {
					<-ctx.Done()
					return &consensus.UnknownError{}
				}
				return nil
			}
		})
		time.Sleep(30 * time.Second)
		require.True(t, short.Valid())
	})
}

func TestARefusedRenewalIsRepeatedAtIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := f.keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		f.set(func() {
			f.before = func(context.Context, machine.Cmd) error { return consensus.ErrOverloaded }
		})
		<-s.Context().Done()
		require.Less(t, f.count(machine.OpKeepAlive), 20, "in 8 s")
		require.Greater(t, f.count(machine.OpKeepAlive), 5)
	})
}

func TestLostGrantsAreFoundWhateverCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		a, err := f.keeper(t, "a", ttl).Default(t.Context())
		require.NoError(t, err)
		b, err := f.keeper(t, "b", ttl).Default(t.Context())
		require.NoError(t, err)
		var held []machine.Event
		f.set(func() {
			f.notice = func(e machine.Event) bool {
				if e.Kind == machine.EventGranted {
					held = append(held, e)
				}
				return e.Kind != machine.EventGranted
			}
		})
		var token machine.Token
		for range 3 {
			first, _ := line(t, a)
			token++
			second, granted := line(t, b)
			release(t, a, first, token)
			began := time.Now()
			token = (<-granted).Token
			require.LessOrEqual(t, time.Since(began), 2*time.Second+b.interval(), "by the next renewal")
			b.event(held[len(held)-1]) // the notice comes late: it must not count for the next one
			release(t, b, second, token)
		}
	})
}

func TestLeavingWaitsForWhatRunsUnderASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := f.keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		done := s.Running()
		left := make(chan error, 1)
		go func() { left <- k.Leave(t.Context()) }()
		<-s.Context().Done()
		time.Sleep(time.Second)
		require.True(t, f.open(s), "what it holds is not freed while a function runs")
		_, err = k.Default(t.Context())
		require.ErrorIs(t, err, consensus.ErrClosed)
		done()
		done()
		require.NoError(t, <-left)
		require.False(t, f.open(s))
	})
}

func TestLeavingOutOfTimeLeavesWhatRunsToExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		k := f.keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		defer s.Running()()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, k.Leave(ctx), context.DeadlineExceeded)
		require.True(t, f.open(s))
	})
}

func TestWhatIsInsistedOnIsRepeatedUntilItIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake().keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		times := 0
		s.Insist(func(context.Context) error {
			if times++; times < 5 {
				return consensus.ErrOverloaded
			}
			return nil
		})
		time.Sleep(ttl)
		synctest.Wait()
		require.Equal(t, 5, times)
		block := make(chan struct{})
		for range maxInsisted + 1 {
			s.Insist(func(ctx context.Context) error {
				select {
				case <-ctx.Done():
				case <-block:
				}
				return nil
			})
		}
		require.False(t, s.Valid(), "beyond the bound the session ends, so that nothing hangs on it for ever")
		close(block)
	})
}

func TestContextsHaveEndedWhenTheKeeperIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake().keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		var told []error
		s.OnEnd(func(cause error) { told = append(told, cause) })
		s.OnEnd(func(cause error) { t.Error("forgotten") })()
		k.Close()
		require.Equal(t, []error{consensus.ErrClosed}, told)
		s.OnEnd(func(cause error) { told = append(told, cause) })
		require.Len(t, told, 2, "at once")
		_, err = k.Default(t.Context())
		require.ErrorIs(t, err, consensus.ErrClosed)
	})
}

func TestAnUnknownOutcomeDoesNotMakeTheBooksGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake().keeper(t, "a", ttl)
		s, err := k.Default(t.Context())
		require.NoError(t, err)
		s.mayRetry(s.Sequence())
		for range 3 * memory {
			s.settle(s.Sequence())
		}
		require.Less(t, len(s.settled), memory+2)
		require.Empty(t, s.unknown)
	})
}
