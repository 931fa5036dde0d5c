package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/kv"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/node/nodetest"
)

// unanswered makes call from a node that is not heard by the leader until its ctx has
// ended, or hears the leader no more, and returns how it ended.
func unanswered(t *testing.T, c *nodetest.Cluster, call func(ctx context.Context, i int) error) error {
	lead := c.WaitLeader(t.Context())
	at, i := 0, 0
	for k := range 3 {
		if c.Node(k).Name() == lead {
			at = k
		} else {
			i = k
		}
	}
	_, err := c.Node(i).KV("").Put(t.Context(), "warm", nil) // the stream and the session are there
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	c.OneWay(at, i)
	defer c.Heal()
	return call(ctx, i)
}

func TestRetryBringsTheOutcomeOfALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		rev, err := c.Node(0).KV("").Put(t.Context(), "k", []byte("old"))
		require.NoError(t, err)
		retry := func(err error) error {
			u, ok := errors.AsType[*consensus.UnknownError](err)
			require.True(t, ok, "%v", err)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, consensus.ErrNoQuorum)
			return u.Retry(t.Context())
		}
		err = unanswered(t, c, func(ctx context.Context, i int) error {
			_, err := c.Node(i).KV("").Put(ctx, "k", []byte("new"), kv.IfRev(rev))
			return err
		})
		require.NoError(t, retry(err), "applied once, though its condition does not hold any more")
		e, err := c.Node(0).KV("").Get(t.Context(), "k")
		require.NoError(t, err)
		require.Equal(t, "new", string(e.Value))

		err = unanswered(t, c, func(ctx context.Context, i int) error {
			_, err := c.Node(i).KV("").Put(ctx, "k", []byte("never"), kv.IfRev(rev))
			return err
		})
		require.ErrorIs(t, retry(err), kv.ErrConflict, "what was refused is no success")
		err = unanswered(t, c, func(ctx context.Context, i int) error {
			_, err := c.Node(i).KV("").Delete(ctx, "nothing", kv.IfRev(rev))
			return err
		})
		require.ErrorIs(t, retry(err), kv.ErrNotFound)

		err = unanswered(t, c, func(ctx context.Context, i int) error {
			_, err := c.Node(i).Counter("n").Add(ctx, 5)
			return err
		})
		require.NoError(t, retry(err))
		n, err := c.Node(0).Counter("n").Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, int64(5), n)
	})
}

func TestRetryAfterTheEndOfTheSessionStaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		at := 0
		err := unanswered(t, c, func(ctx context.Context, i int) error {
			at = i
			_, err := c.Node(i).Counter("n").Add(ctx, 5)
			c.Isolate(i)
			time.Sleep(30 * time.Second)
			return err
		})
		u, ok := errors.AsType[*consensus.UnknownError](err)
		require.True(t, ok, "%v", err)
		err = u.Retry(t.Context())
		require.ErrorIs(t, err, consensus.ErrUnknown)
		require.ErrorIs(t, err, consensus.ErrSessionExpired)
		_, err = c.Node(at).Counter("n").Add(t.Context(), 1)
		require.NoError(t, err, "under a new session")
	})
}

// between comes between two pages of a scan.
type between struct {
	*consensus.Client
	pages int
	then  func()
}

func (b *between) Query(ctx context.Context, q *machine.Query) (machine.Result, error) {
	res, err := b.Client.Query(ctx, q)
	if q.Kind == machine.QueryScan {
		if b.pages++; b.pages == 1 {
			b.then()
		}
	}
	return res, err
}

func TestAScanMissesNoneOfManyLargeChangesBetweenItsPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := nodetest.Single(t)
		direct := n.KV("s/")
		big := func(c byte) []byte { return bytes.Repeat([]byte{c}, 300<<10) }
		for i := range 6 {
			_, err := direct.Put(t.Context(), fmt.Sprint(i), big('a'))
			require.NoError(t, err)
		}
		b := &between{Client: n.Consensus(), then: func() { // more than one page of history
			for i := range 6 {
				_, err := direct.Put(t.Context(), fmt.Sprint(i), big('b'))
				require.NoError(t, err)
			}
		}}
		keeper := session.NewKeeper(b, "scanner", 1, 0, 10*time.Second, time.Second, slog.New(slog.DiscardHandler))
		defer keeper.Close()
		seen := ""
		for e, err := range kv.New(keeper, "s/").Scan(t.Context(), "") {
			require.NoError(t, err)
			seen += string(e.Value[:1])
		}
		require.Equal(t, "bbbbbb", seen, "one revision")
	})
}

func TestATransactionReadsAKeyTheSameTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := nodetest.Single(t)
		k := n.KV("")
		_, err := k.Put(t.Context(), "k", []byte("1"))
		require.NoError(t, err)
		runs := 0
		_, err = k.Txn(t.Context(), func(tx *kv.Tx) error {
			runs++
			first, err := tx.Get("k")
			require.NoError(t, err)
			if runs == 1 {
				_, err := k.Put(t.Context(), "k", []byte("2"))
				require.NoError(t, err)
			}
			again, err := tx.Get("k")
			require.NoError(t, err)
			require.Equal(t, first, again)
			tx.Put("copy", first.Value)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, 2, runs)
		e, err := k.Get(t.Context(), "copy")
		require.NoError(t, err)
		require.Equal(t, "2", string(e.Value))
	})
}

func TestAWatchFromZeroBeginsWithTheFirstChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := nodetest.Single(t).KV("")
		_, err := k.Put(t.Context(), "k", []byte("1"))
		require.NoError(t, err)
		for ch, err := range k.Watch(t.Context(), "", kv.From(0)) {
			require.NoError(t, err)
			require.Equal(t, kv.Put, ch.Kind)
			break
		}
	})
}

func TestBadWritesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	k := kv.New(nil, "") // a keeper would be needed to send
	for name, err := range map[string]error{
		"session":    second(k.Put(t.Context(), "k", nil, kv.Ephemeral(nil))),
		"guard":      second(k.Put(t.Context(), "k", nil, kv.Guard(nil))),
		"append":     second(k.Append(t.Context(), strings.Repeat("k", kv.MaxKey-19), nil)),
		"values":     second(k.Txn(t.Context(), func(tx *kv.Tx) error { tx.Put("a", make([]byte, kv.MaxValue)); tx.Put("b", []byte{1}); return nil })),
		"operations": second(k.Txn(t.Context(), func(tx *kv.Tx) error { putMany(tx, kv.MaxOps+1); return nil })),
	} {
		require.ErrorIs(t, err, consensus.ErrInvalid, name)
	}
}

func second[T any](_ T, err error) error { return err }

func putMany(tx *kv.Tx, n int) {
	for i := range n {
		tx.Put(fmt.Sprint(i), nil)
	}
}

func TestAHoldThatIsGivenBackOrLostGuardsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		lead := c.WaitLeader(t.Context())
		i := 0
		for c.Node(i).Name() == lead {
			i++
		}
		h, err := c.Node(i).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		c.Isolate(i)
		<-h.Context().Done()
		c.Heal() // the cluster still has the session
		_, err = c.Node(i).KV("").Put(t.Context(), "k", nil, kv.Guard(h))
		require.ErrorIs(t, err, lock.ErrStaleToken)
	})
}
