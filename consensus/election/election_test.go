package election_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/consensus/election"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func cluster(t *testing.T, n int) *nodetest.Cluster {
	return nodetest.New(t, n, nodetest.Configure(func(_ int, c *node.Config) { c.SessionTTL = 3 * time.Second }))
}

func TestObserversSeeEachLeaderOnceAndInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 5)
		lead := c.WaitLeader(t.Context())
		watcher, worker := -1, -1
		for i := range 5 {
			switch {
			case c.Node(i).Name() == lead:
			case watcher < 0:
				watcher = i
			default:
				worker = i
			}
		}
		seen := make(chan election.Leader, 100)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			var last error
			for l, err := range c.Node(watcher).Election("e").Observe(ctx) {
				if last = err; err == nil {
					seen <- l
				}
			}
			ended <- last
		}()
		require.True(t, (<-seen).Vacant)
		e := c.Node(worker).Election("e")
		for k := range 6 {
			if k == 3 { // the one that serves the watch or leads goes
				for i := range 5 {
					if c.Node(i) != nil && c.Node(i).Name() == lead {
						c.Crash(i)
					}
				}
			}
			l, err := e.Campaign(t.Context(), fmt.Append(nil, k))
			require.NoError(t, err)
			require.NoError(t, l.Confirm(t.Context()))
			require.NoError(t, l.Announce(t.Context(), fmt.Append(nil, k, "!")))
			require.NoError(t, l.Resign(t.Context()))
			require.False(t, l.IsLeader())
			for _, want := range []election.Leader{
				{Node: c.Node(worker).Name(), Value: fmt.Append(nil, k), Epoch: l.Epoch()},
				{Node: c.Node(worker).Name(), Value: fmt.Append(nil, k, "!"), Epoch: l.Epoch()},
				{Vacant: true, Epoch: l.Epoch()},
			} {
				got := <-seen
				require.Equal(t, want.Epoch, got.Epoch)
				require.Equal(t, want.Vacant, got.Vacant)
				if !want.Vacant {
					require.Equal(t, want, got)
				}
			}
		}
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		_, err := e.Leader(t.Context())
		require.ErrorIs(t, err, election.ErrNoLeader)
	})
}

func TestPreferenceGoesBeforeOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 3)
		e := c.Node(0).Election("e")
		first, err := e.Campaign(t.Context(), nil)
		require.NoError(t, err)
		won := make(chan string, 2)
		var wg sync.WaitGroup
		for _, who := range []struct {
			name  string
			score uint32
		}{{"plain", 0}, {"preferred", 5}} {
			wg.Go(func() {
				l, err := e.Campaign(t.Context(), []byte(who.name), election.WithPreference(who.score))
				if err == nil {
					won <- who.name
					err = l.Resign(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
			time.Sleep(100 * time.Millisecond)
		}
		all, err := e.Candidates(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.NoError(t, first.Resign(t.Context()))
		require.Equal(t, "preferred", <-won)
		require.Equal(t, "plain", <-won)
		wg.Wait()
	})
}

func TestRunCampaignsAgainAfterALoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster(t, 5)
		lead := c.WaitLeader(t.Context())
		i := 0
		for c.Node(i).Name() == lead {
			i++
		}
		ctx, stop := context.WithCancel(t.Context())
		epochs := make(chan lock.Token, 10)
		ended := make(chan error, 1)
		go func() {
			ended <- c.Node(i).Election("e").Run(ctx, func(ctx context.Context, l *election.Leadership) error {
				epochs <- l.Epoch()
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		first := <-epochs
		c.Isolate(i)
		other, err := c.Node((i+1)%5).Election("e").Campaign(t.Context(), nil)
		require.NoError(t, err)
		require.Greater(t, other.Epoch(), first)
		c.Heal()
		require.NoError(t, other.Resign(t.Context()))
		require.Greater(t, <-epochs, other.Epoch())
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)

		boom := errors.New("boom")
		err = c.Node((i+1)%5).Election("e").Run(t.Context(), func(context.Context, *election.Leadership) error { return boom })
		require.ErrorIs(t, err, boom, "an error of fn ends Run")
	})
}
