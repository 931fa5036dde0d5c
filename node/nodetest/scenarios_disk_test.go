package nodetest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/node/nodetest"
	"github.com/clatter-go/clatter/transport/memnet"
)

// sameState waits until all replicas have applied the same and compares them (R1).
func sameState(t *testing.T, c *nodetest.Cluster, which ...int) {
	t.Helper()
	for range 4000 {
		var all []node.Status
		for _, i := range which {
			s, err := c.Node(i).Status(t.Context())
			require.NoError(t, err)
			all = append(all, s)
		}
		level := true
		for _, s := range all {
			level = level && s.Applied == all[0].Applied
		}
		if level {
			require.NotZero(t, all[0].Applied)
			for _, s := range all {
				require.Equal(t, all[0].Hash, s.Hash, "R1")
			}
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, i := range which {
		s, err := c.Node(i).Status(t.Context())
		t.Logf("n%d: %+v %v", i, s, err)
	}
	t.Fatal("the replicas never were level")
}

// RF-26: the disk of the leader hangs.
func TestALeaderWithAHungDiskIsReplacedAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		lead := index(c, 3, c.WaitLeader(t.Context()))
		_, err := c.Node(lead).KV("").Put(t.Context(), "k", []byte("1"))
		require.NoError(t, err)
		hung := make(chan struct{})
		c.Disk(lead).Fault(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				<-hung
			}
			return nil
		})
		release := sync.OnceFunc(func() { close(hung) })
		defer release()
		defer c.Disk(lead).Fault(nil)
		began := time.Now()
		_, err = c.Node((lead+1)%3).KV("").Put(t.Context(), "k", []byte("2"))
		require.NoError(t, err)
		require.Less(t, time.Since(began), 5*time.Second)
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		e, err := c.Node(lead).KV("").Get(ctx, "k")
		require.NoError(t, err, "the node goes on as a client of the others")
		require.Equal(t, "2", string(e.Value))
		_, err = c.Node(lead).KV("").Put(ctx, "k", []byte("3"))
		require.NoError(t, err)
		require.Less(t, time.Since(began), 5*time.Second)
		release()
		time.Sleep(5 * time.Second)
		sameState(t, c, 0, 1, 2)
	})
}

// RF-26: reads that are under way when the disk of their voter hangs move on.
func TestReadsThroughAVoterWithAHungDiskMoveOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		lead := index(c, 3, c.WaitLeader(t.Context()))
		for _, who := range []int{(lead + 1) % 3, lead} {
			_, err := c.Node(lead).KV("").Put(t.Context(), "k", []byte("1"))
			require.NoError(t, err)
			hung := make(chan struct{})
			c.Disk(who).Fault(func(op vfs.Op) error {
				if op.Kind == vfs.OpSync {
					<-hung
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
					}
					if _, err := c.Node((who+1)%3).KV("").Put(ctx, "k", []byte("2")); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range 50 {
				began := time.Now()
				_, err := c.Node(who).KV("").Get(ctx, "k")
				if err != nil || time.Since(began) > 3*time.Second {
					t.Errorf("leader %v: a read took %v: %v", who == lead, time.Since(began), err)
					break
				}
				time.Sleep(40 * time.Millisecond)
			}
			close(stop)
			wg.Wait()
			cancel()
			close(hung)
			c.Disk(who).Fault(nil)
			time.Sleep(5 * time.Second)
		}
		sameState(t, c, 0, 1, 2)
	})
}

// RF-20: the disk of one voter is full, then of all, then there is space again.
func TestAFullDiskIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		lead := index(c, 3, c.WaitLeader(t.Context()))
		other := (lead + 1) % 3
		value := make([]byte, 128<<10)
		n := 0
		put := func(ctx context.Context, node int) error {
			n++
			_, err := c.Node(node).KV("").Put(ctx, fmt.Sprint("k", n%8), value)
			return err
		}
		require.NoError(t, put(t.Context(), lead))
		c.Disk(lead).Room(c.Disk(lead).Used())
		began, slowest := time.Now(), time.Duration(0)
		for range 100 {
			at := time.Now()
			require.NoError(t, put(t.Context(), other))
			slowest = max(slowest, time.Since(at))
		}
		require.Less(t, slowest, 5*time.Second, "one full disk of three")
		s, err := c.Node(other).Status(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, fmt.Sprint("n", lead), s.Leader, "it cannot write, so it does not lead")
		for i := range 3 {
			c.Disk(i).Room(c.Disk(i).Used())
		}
		failed := 0
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err := put(ctx, other)
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				failed++
				break
			}
		}
		require.NotZero(t, failed)
		for i := range 3 {
			c.Disk(i).Room(1 << 40)
		}
		began = time.Now()
		require.NoError(t, put(t.Context(), other))
		require.NoError(t, put(t.Context(), lead))
		require.Less(t, time.Since(began), 10*time.Second)
		sameState(t, c, 0, 1, 2)
	})
}

// EIO: the replica ends, the node goes on as a client, the cluster goes on.
func TestABrokenDiskMakesAClientOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodetest.New(t, 3)
		lead := index(c, 3, c.WaitLeader(t.Context()))
		h, err := c.Node(lead).Mutex("m").Lock(t.Context())
		require.NoError(t, err)
		c.Disk(lead).Fault(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				return syscall.EIO
			}
			return nil
		})
		for i := range 3 {
			began := time.Now()
			_, err := c.Node(i).KV("").Put(t.Context(), "k", fmt.Append(nil, i))
			require.NoError(t, err)
			require.Less(t, time.Since(began), 5*time.Second)
			e, err := c.Node((i+lead)%3).KV("").Get(t.Context(), "k")
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(e.Value))
		}
		require.True(t, h.Valid(), "the session goes on through the others")
		require.NoError(t, h.Verify(t.Context()))
		c.Kill(lead)
		c.Disk(lead).Crash()
		c.Disk(lead).Fault(nil)
		c.Restart(lead)
		time.Sleep(2 * time.Second)
		sameState(t, c, 0, 1, 2)
	})
}

// RF-15, RF-18, RF-19: the power goes everywhere at once, in the middle of writing.
func TestTornTailsEverywhereLoseNothingAcknowledged(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			c := nodetest.New(t, 3, nodetest.Seed(seed+1))
			var mu sync.Mutex
			acked, count := map[string]bool{}, int64(0)
			tried := int64(0)
			round := func(r int) {
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				for w := range 6 {
					n := c.Node(w % 3)
					wg.Go(func() {
						for i := 0; ctx.Err() == nil; i++ {
							key := fmt.Sprintf("%d/%d/%d", r, w, i)
							if _, err := n.KV("").Put(ctx, key, make([]byte, 1+i*131%3000)); err == nil {
								mu.Lock()
								acked[key] = true
								mu.Unlock()
							}
							mu.Lock()
							tried++
							mu.Unlock()
							if _, err := n.Counter("c").Add(ctx, 1); err == nil {
								mu.Lock()
								count++
								mu.Unlock()
							}
						}
					})
				}
				time.Sleep(20*time.Millisecond + time.Duration(rng.IntN(30_000))*time.Microsecond)
				for i := range 3 {
					c.Disk(i).HaltAt(0)
				}
				cancel()
				wg.Wait()
				for i := range 3 {
					c.PowerLoss(i, rng)
				}
			}
			c.Network().SetAll(memnet.Rule{Delay: 500 * time.Microsecond, Jitter: time.Millisecond})
			for r := range 3 {
				round(r)
				var wg sync.WaitGroup
				for i := range 3 {
					wg.Go(func() { c.Restart(i) })
				}
				wg.Wait()
			}
			for key := range acked {
				_, err := c.Node(int(rng.IntN(3))).KV("").Get(t.Context(), key)
				require.NoError(t, err, "acknowledged and lost: %s", key)
			}
			require.NotEmpty(t, acked)
			v, err := c.Node(0).Counter("c").Get(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, v, count)
			require.LessOrEqual(t, v, tried)
			sameState(t, c, 0, 1, 2)
		})
	}
}

// snapshotted waits until the snapshot in the making is there, and the log cut if it
// is to be, and returns the files. A minute of fake time is for ever.
func snapshotted(t *testing.T, c *nodetest.Cluster, i int, cut bool) (names []string) {
	for range 6000 {
		var err error
		names, err = c.Disk(i).List("/data/consensus/raft")
		require.NoError(t, err)
		if !slices.Contains(names, "snapshot.tmp") && !(cut && slices.Contains(names, "0000000000000001.wal")) {
			return names
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the snapshot is never finished, or the log never cut: %v", names)
	return nil
}

// Enough entries for a snapshot and a cut log; then everything starts again.
func TestAVoterRestartsFromItsSnapshot(t *testing.T) {
	for _, size := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			c := nodetest.New(t, size, nodetest.Configure(func(i int, cfg *node.Config) {
				if size == 1 {
					cfg.Join, cfg.Expect = nil, 1
				}
			}))
			h, err := c.Node(0).Mutex("m").Lock(t.Context())
			require.NoError(t, err)
			const each = 1100
			lead := index(c, size, c.WaitLeader(t.Context()))
			for i := 0; ; i++ {
				if s, err := c.Node(0).Status(t.Context()); i%100 == 0 && (err != nil || s.Applied > 10_500) {
					require.NoError(t, err)
					break
				}
				_, err = c.Node(lead).KV("").Put(t.Context(), fmt.Sprint(i%each), fmt.Appendf(nil, "%0*d", 1000/(size*size*size), i))
				require.NoError(t, err)
			}
			var which []int
			for i := range size {
				which = append(which, i)
			}
			sameState(t, c, which...)
			for i := range size {
				names := snapshotted(t, c, i, size == 1) // followers keep what they may have to serve
				require.True(t, strings.HasSuffix(names[len(names)-1], ".snap"), "no snapshot: %v", names)
			}
			before, err := c.Node(0).KV("").Get(t.Context(), "7")
			require.NoError(t, err)
			for i := range size {
				c.Crash(i)
			}
			var wg sync.WaitGroup
			for i := range size {
				wg.Go(func() { c.Restart(i) })
			}
			wg.Wait()
			after, err := c.Node(0).KV("").Get(t.Context(), "7")
			require.NoError(t, err)
			require.Equal(t, before, after)
			next, err := c.Node(size - 1).Mutex("m").Lock(t.Context())
			require.NoError(t, err)
			require.Equal(t, h.Token()+1, next.Token())
			sameState(t, c, which...)
		})
	}
}
