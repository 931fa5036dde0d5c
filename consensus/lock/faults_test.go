package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
)

type key struct{}

func TestANestedHoldHasItsOwnContextAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		m := c.Node(i).Mutex("m")
		outer, err := m.Lock(t.Context())
		require.NoError(t, err)
		inner, err := m.Lock(context.WithValue(outer.Context(), key{}, "v"), lock.Reentrant())
		require.NoError(t, err)
		require.Equal(t, "v", inner.Context().Value(key{}))
		deepest, err := m.Lock(inner.Context(), lock.Reentrant())
		require.NoError(t, err)
		require.NoError(t, deepest.Unlock(t.Context()))
		require.ErrorIs(t, context.Cause(deepest.Context()), lock.ErrReleased)
		require.NoError(t, inner.Context().Err())

		require.NoError(t, outer.Unlock(t.Context()))
		require.False(t, outer.Valid())
		again, err := m.Lock(inner.Context(), lock.Reentrant())
		require.NoError(t, err, "under a nested hold, though the outer one is given back")
		require.Equal(t, outer.Token(), again.Token())
		require.NoError(t, again.Unlock(t.Context()))

		c.Isolate(i)
		<-inner.Context().Done()
		require.ErrorIs(t, context.Cause(inner.Context()), lock.ErrLost)
	})
}

func TestDoOfANestedHoldEndsWithTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		outer, err := c.Node(i).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		ctx := context.WithoutCancel(outer.Context()) // knows of the hold, does not end with it
		c.Isolate(i)
		err = c.Node(i).Mutex("m").Do(ctx, func(ctx context.Context, h *lock.Hold) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, lock.Reentrant())
		require.ErrorIs(t, err, lock.ErrLost)
	})
}

func TestDoEndsByItsContextAlsoWithoutAQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		began := time.Now()
		err := c.Node(i).Mutex("m").Do(ctx, func(ctx context.Context, h *lock.Hold) error {
			c.Isolate(i)
			<-ctx.Done()
			return nil
		}, lock.WithTTL(time.Minute))
		require.ErrorIs(t, err, context.DeadlineExceeded, "what could not be told is joined")
		require.Less(t, time.Since(began), 2*time.Second)
		c.Heal()
		h, err := c.Node(i).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Less(t, time.Since(began), 15*time.Second, "it was freed in the background, not by expiry")
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestDoGivesBackWhenItsContextHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Node(i).Mutex("m").Do(ctx, func(ctx context.Context, h *lock.Hold) error {
			cancel()
			return nil
		})
		require.NoError(t, err)
		h, err := c.Node(i).Mutex("m").TryLock(t.Context())
		require.NoError(t, err, "it is free when Do returns")
		require.NoError(t, h.Unlock(t.Context()))
	})
}

func TestAnEndedSessionIsRefusedBeforeAnythingIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		s, err := c.Node(i).Session(t.Context(), ttl)
		require.NoError(t, err)
		c.Isolate(i)
		<-s.Context().Done()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Node(i).Mutex("m").Lock(ctx, lock.WithSession(s))
		require.ErrorIs(t, err, consensus.ErrSessionExpired)
		require.NoError(t, ctx.Err(), "at once")
		_, err = c.Node(i).Mutex("m").Lock(ctx, lock.WithTTL(-1))
		require.ErrorIs(t, err, consensus.ErrInvalid)
		_, err = c.Node(i).Mutex("m").Lock(ctx, lock.WithTTL(time.Millisecond))
		require.ErrorIs(t, err, consensus.ErrInvalid)
		_, err = c.Node(i).Mutex("m").Lock(ctx, lock.WithOwner(string(make([]byte, 2000))))
		require.ErrorIs(t, err, consensus.ErrInvalid)
	})
}

func TestALockDelayIsNamedWhenNobodyHoldsTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		_, err := c.Node(i).Mutex("m").Lock(t.Context(), lock.WithLockDelay(time.Hour))
		require.NoError(t, err)
		c.Crash(i)
		for {
			_, err = c.Node((i + 1) % 3).Mutex("m").TryLock(t.Context())
			e, ok := errors.AsType[*lock.LockedError](err)
			require.True(t, ok, "%v", err)
			if e.Holder.Node == "" {
				require.NotContains(t, e.Error(), "held by")
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

func TestLeaveFreesNothingUnderAFunctionThatStillRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		i := follower(t, c, 3)
		running, returned := make(chan struct{}), make(chan time.Time, 1)
		done := make(chan error, 1)
		n := c.Node(i)
		go func() {
			done <- n.Mutex("m").Do(t.Context(), func(ctx context.Context, h *lock.Hold) error {
				close(running)
				<-ctx.Done()
				time.Sleep(time.Second) // slow to stop
				returned <- time.Now()
				return nil
			})
		}()
		<-running
		left := make(chan error, 1)
		go func() { left <- n.Leave(t.Context()) }()
		h, err := c.Node((i + 1) % 3).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		granted := time.Now()
		require.False(t, granted.Before(<-returned))
		require.NoError(t, <-done)
		require.NoError(t, <-left)
		require.NoError(t, h.Unlock(t.Context()))
	})
}
