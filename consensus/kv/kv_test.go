package kv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/kv"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func cluster(t *testing.T, n int) *nodetest.Cluster {
	return nodetest.New(t, n, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = 3 * time.Second }))
}

func TestConditionsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		k := c.Node(0).KV("app/")
		ctx := t.Context()
		r1, err := k.Put(ctx, "a", []byte("1"), kv.IfAbsent())
		require.NoError(t, err)
		_, err = k.Put(ctx, "a", []byte("x"), kv.IfAbsent())
		require.ErrorIs(t, err, kv.ErrConflict)
		r2, err := k.Put(ctx, "a", []byte("2"), kv.IfRev(r1))
		require.NoError(t, err)
		_, err = k.Delete(ctx, "a", kv.IfRev(r1))
		require.ErrorIs(t, err, kv.ErrConflict)
		old, err := k.Swap(ctx, "a", []byte("3"))
		require.NoError(t, err)
		require.Equal(t, kv.Entry{Key: "a", Value: []byte("2"), Rev: r2, Created: r1}, old)
		_, err = k.Delete(ctx, "a")
		require.NoError(t, err)
		rev, err := k.Delete(ctx, "a")
		require.NoError(t, err)
		require.Zero(t, rev, "nothing was there")
		_, err = k.Delete(ctx, "a", kv.IfRev(r2))
		require.ErrorIs(t, err, kv.ErrNotFound)
		_, err = k.Get(ctx, "a")
		require.ErrorIs(t, err, kv.ErrNotFound)
		for i := range 3 {
			e, err := k.Append(ctx, "log/", fmt.Append(nil, i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("log/%020d", i+1), e.Key)
		}
	})
}

func TestLimitsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	k := kv.New(nil, "p/") // a keeper would be needed to send
	_, err := kv.New(nil, "").Put(t.Context(), "", nil)
	require.ErrorIs(t, err, consensus.ErrInvalid)
	_, err = k.Put(t.Context(), strings.Repeat("k", kv.MaxKey), nil)
	require.ErrorIs(t, err, consensus.ErrInvalid, "the prefix counts")
	_, err = k.Put(t.Context(), "k", make([]byte, kv.MaxValue+1))
	require.ErrorIs(t, err, consensus.ErrInvalid)
}

func TestAGuardRefusesWhoLostTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		ctx := t.Context()
		h, err := c.Node(0).Mutex("m").Lock(ctx)
		require.NoError(t, err)
		_, err = c.Node(0).KV("").Put(ctx, "k", []byte("1"), kv.Guard(h))
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
		_, err = c.Node(0).KV("").Put(ctx, "k", []byte("2"), kv.Guard(h))
		require.ErrorIs(t, err, lock.ErrStaleToken)
		e, err := c.Node(1).KV("").Get(ctx, "k")
		require.NoError(t, err)
		require.Equal(t, "1", string(e.Value))
	})
}

func TestTransactionsDoNotLoseUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		var wg sync.WaitGroup
		for w := range 9 {
			wg.Go(func() {
				k := c.Node(w % 3).KV("bank/")
				for range 5 {
					_, err := k.Txn(t.Context(), func(tx *kv.Tx) error {
						for _, key := range []string{"a", "b"} {
							e, err := tx.Get(key)
							if err != nil && !errors.Is(err, kv.ErrNotFound) {
								return err
							}
							tx.Put(key, append(e.Value, '.'))
						}
						return nil
					})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		for _, key := range []string{"a", "b"} {
			e, err := c.Node(0).KV("bank/").Get(t.Context(), key)
			require.NoError(t, err)
			require.Len(t, e.Value, 45)
		}
		m := kv.MapOf[struct{ N int }](c.Node(1).KV("m/"))
		for range 3 {
			_, err := m.Update(t.Context(), "x", func(v *struct{ N int }) error { v.N++; return nil })
			require.NoError(t, err)
		}
		v, _, err := m.Get(t.Context(), "x")
		require.NoError(t, err)
		require.Equal(t, 3, v.N)
	})
}

func TestAWatchHasNoGapsWhateverServesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 5)
		lead := c.WaitLeader(t.Context())
		var live []int
		for i := range 5 {
			if c.Node(i).Name() != lead {
				live = append(live, i)
			}
		}
		w, p := c.Node(live[0]).KV("w/"), c.Node(live[1]).KV("w/")
		_, err := p.Put(t.Context(), "before", []byte("x"))
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		seen := make(chan kv.Change, 1000)
		ended := make(chan error, 1)
		go func() {
			var last error
			for ch, err := range w.Watch(ctx, "") {
				if last = err; err == nil {
					seen <- ch
				}
			}
			ended <- last
		}()
		require.Equal(t, kv.Init, (<-seen).Kind)
		require.Equal(t, kv.Synced, (<-seen).Kind)
		var middle kv.Rev
		for k := range 200 {
			if k == 100 {
				for i := range 5 {
					if c.Node(i) != nil && c.Node(i).Name() == lead {
						c.Crash(i)
					}
				}
			}
			rev, err := p.Put(t.Context(), "k", fmt.Append(nil, k))
			require.NoError(t, err)
			if k == 150 {
				middle = rev
			}
		}
		next := func(ch <-chan kv.Change) kv.Change {
			for c := range ch {
				if c.Kind != kv.Synced {
					return c
				}
			}
			panic("unreachable")
		}
		for k := range 200 {
			require.Equal(t, fmt.Sprint(k), string(next(seen).Entry.Value))
		}
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)

		k := 151
		for ch, err := range w.Watch(t.Context(), "", kv.From(middle)) {
			require.NoError(t, err)
			if ch.Kind == kv.Synced {
				continue
			}
			require.Equal(t, fmt.Sprint(k), string(ch.Entry.Value))
			require.Equal(t, fmt.Sprint(k-1), string(ch.Prev.Value))
			if k++; k == 200 {
				break
			}
		}
	})
}

func TestEphemeralAndTimedKeysGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		ctx := t.Context()
		s, err := c.Node(1).Session(ctx, 3*time.Second)
		require.NoError(t, err)
		k := c.Node(1).KV("")
		_, err = k.Put(ctx, "me", []byte("here"), kv.Ephemeral(s))
		require.NoError(t, err)
		_, err = k.Put(ctx, "soon", nil, kv.TTL(5*time.Second))
		require.NoError(t, err)
		time.Sleep(4 * time.Second)
		_, err = k.Get(ctx, "me")
		require.NoError(t, err, "the session is kept alive")
		_, err = k.Get(ctx, "soon")
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		_, err = k.Get(ctx, "soon")
		require.ErrorIs(t, err, kv.ErrNotFound)
		require.NoError(t, s.Close(ctx))
		_, err = k.Get(ctx, "me")
		require.ErrorIs(t, err, kv.ErrNotFound)
	})
}

func TestAScanIsOneRevisionOverManyPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 1)
		k := c.Node(0).KV("s/")
		const n = 2500
		var wg sync.WaitGroup
		for w := range 10 {
			wg.Go(func() {
				for i := w; i < n; i += 10 {
					if _, err := k.Put(t.Context(), fmt.Sprintf("%05d", i), []byte("0")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		stop := make(chan struct{})
		wg.Go(func() { // both ends always change together
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := k.Txn(t.Context(), func(tx *kv.Tx) error {
					tx.Put("00000", fmt.Append(nil, i))
					tx.Put(fmt.Sprintf("%05d", n-1), fmt.Append(nil, i))
					return nil
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for range 20 {
			var all []kv.Entry
			for e, err := range k.Scan(t.Context(), "") {
				require.NoError(t, err)
				all = append(all, e)
			}
			require.Len(t, all, n)
			require.Equal(t, string(all[0].Value), string(all[n-1].Value))
		}
		close(stop)
		wg.Wait()
	})
}
