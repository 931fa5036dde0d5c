package consensus

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

// tape is a link that keeps what it is given.
type tape struct{ calls []*call }

func (p *tape) take(calls ...*call) {
	for _, k := range calls {
		k.wrote.Store(true)
	}
	p.calls = append(p.calls, calls...)
}

func (p *tape) route(...machine.SessionID) {}

// lonely is a client without a cluster.
func lonely(t *testing.T) (*Client, func()) {
	c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.Expect = 3 })
	return c.nodes[0].engine.Client(), c.stop
}

func TestWhatAnAttemptMayHaveDoneIsNeverForgotten(t *testing.T) {
	add := machine.Cmd{Session: 1, Seq: 1, Op: machine.OpAdd}
	for _, c := range []struct {
		name   string
		happen func(c *Client, p *tape)
		want   error
	}{
		{"never handed over", func(*Client, *tape) {}, ErrNoQuorum},
		{"handed over", func(c *Client, p *tape) { c.up(p) }, ErrUnknown},
		{"handed over, link lost", func(c *Client, p *tape) { c.up(p); c.down(p) }, ErrUnknown},
		{"refused", func(c *Client, p *tape) {
			c.up(p)
			c.settle(p, []reply{{id: p.calls[0].id, verdict: notTaken}})
			c.down(p)
		}, ErrNoQuorum},
		{"unknown there, refused elsewhere", func(c *Client, p *tape) {
			c.up(p)
			c.settle(p, []reply{{id: p.calls[0].id, verdict: uncertain}})
			c.down(p)
			other := &tape{}
			c.up(other)
			c.settle(other, []reply{{id: other.calls[0].id, verdict: notTaken}})
			c.down(other)
		}, ErrUnknown},
		{"lost there, refused elsewhere", func(c *Client, p *tape) {
			c.up(p)
			c.down(p)
			other := &tape{}
			c.up(other)
			c.settle(other, []reply{{id: other.calls[0].id, verdict: notTaken}})
			c.down(other)
		}, ErrUnknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cl, stop := lonely(t)
				defer stop()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				got := make(chan error, 1)
				go func() { _, err := cl.Do(ctx, add); got <- err }()
				synctest.Wait()
				c.happen(cl, &tape{})
				err := <-got
				require.ErrorIs(t, err, c.want)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				if c.want == ErrUnknown {
					require.NotErrorIs(t, err, ErrNoQuorum)
				} else {
					require.NotErrorIs(t, err, ErrUnknown)
				}
			})
		})
	}
}

func TestCallsGoToTheNextLinkInTheirOrderAndAnyAnswerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl, stop := lonely(t)
		defer stop()
		const n = 100
		got := make(chan machine.Result, n)
		for i := range n {
			go func() {
				r, err := cl.Do(t.Context(), machine.Cmd{Session: 1, Seq: uint64(i + 1), Op: machine.OpAdd})
				require.NoError(t, err)
				got <- r
			}()
		}
		synctest.Wait()
		first, second := &tape{}, &tape{}
		cl.up(first)
		cl.down(first)
		cl.up(second)
		require.Len(t, second.calls, n)
		for i, k := range second.calls {
			require.Equal(t, first.calls[i], k)
			require.Greater(t, k.id, uint64(i))
			cl.settle(first, []reply{{id: k.id, result: machine.Result{N: k.id}}})
			cl.settle(second, []reply{{id: k.id, result: machine.Result{N: 0}}})
		}
		for range n {
			require.NotZero(t, (<-got).N)
		}
		require.Zero(t, cl.bytes)
	})
}
