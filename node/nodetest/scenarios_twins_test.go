package nodetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
)

// P4, protocol 2: a process of a copied name on another machine proves nothing about
// the death of the first, which is cut off here and believes in its lock.
func TestATwinDoesNotFreeWhatALivingHolderBelievesIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 5, nodetest.Configure(func(i int, cfg *node.Config) {
			cfg.NonVoter, cfg.Expect = i > 2, 3
			if cfg.NonVoter {
				cfg.Dir = ""
			}
		}))
		c.Kill(4) // its address is the twin's
		h, err := c.Node(3).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		c.Partition([]int{3}, []int{0, 1, 2, 4})
		c.Reconfigure(4, func(cfg *node.Config) { cfg.Name = "n3" })
		if err := c.Begin(t.Context(), 4); err == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			_, _ = c.Node(4).KV("").Put(ctx, "k", nil) // opens its session
			cancel()
		}
		next, err := c.Node(0).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		require.Equal(t, h.Token()+1, next.Token())
		require.False(t, h.Valid(), "two holders believe")
	})
}
