package consensus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/vfs"
)

// loopback is a cluster of real sockets and a real disk.
func loopback(t testing.TB, n, voters int) *cluster {
	c := &cluster{t: t, pace: LAN, board: &board{peers: map[string]Peer{}, changed: make(chan struct{})}}
	dir := t.TempDir()
	c.add(n, func(i int, cfg *Config) {
		cfg.FS, cfg.Dir = vfs.OS(), filepath.Join(dir, cfg.Name)
		cfg.Expect, cfg.NonVoter = voters, i >= voters
	})
	return c
}

func TestThreeNodesOnLoopbackWriteWithinASecond(t *testing.T) {
	began := time.Now()
	c := loopback(t, 3, 3)
	defer c.stop()
	ctx, cancel := within(30 * time.Second)
	defer cancel()
	require.NoError(t, c.nodes[0].put(ctx, "a", "1"))
	t.Logf("three empty nodes to the first write: %v", time.Since(began))
	for _, n := range c.nodes {
		v, err := n.get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "1", v)
	}
	c.stop()
	for _, n := range c.nodes {
		n.start()
	}
	v, err := c.nodes[2].get(ctx, "a")
	require.NoError(t, err)
	require.Equal(t, "1", v)
}

// caller is one goroutine of a benchmark with a session of its own.
type worker struct {
	client  *Client
	session machine.SessionID
	seq     uint64
	name    string
}

func newWorker(b testing.TB, n *node, i int) *worker {
	ctx, cancel := within(10 * time.Second)
	defer cancel()
	r, err := n.engine.Client().Do(ctx, machine.Cmd{Op: machine.OpOpenSession, Body: machine.Encode(&machine.OpenSession{
		TTL: uint64(time.Hour), Node: n.cfg.Name, Boot: n.cfg.Boot, Nonce: rand.Uint64()})})
	require.NoError(b, err)
	return &worker{client: n.engine.Client(), session: machine.SessionID(r.N), name: fmt.Sprint("lock/", i)}
}

func (w *worker) do(op machine.Op, m machine.Message) (machine.Result, error) {
	w.seq++
	return w.client.Do(context.Background(), machine.Cmd{Session: w.session, Seq: w.seq, Floor: w.seq, Op: op, Body: machine.Encode(m)})
}

func (w *worker) lockUnlock() error {
	r, err := w.do(machine.OpAcquire, &machine.Acquire{Space: machine.SpaceLock, Name: w.name})
	if err != nil || r.Code != machine.OK {
		return fmt.Errorf("acquire: code %d: %w", r.Code, err)
	}
	r, err = w.do(machine.OpRelease, &machine.Release{Space: machine.SpaceLock, Name: w.name, Target: w.seq, Token: r.Token})
	if err != nil || r.Code != machine.OK {
		return fmt.Errorf("release: code %d: %w", r.Code, err)
	}
	return nil
}

// spread runs b.N operations by callers on all nodes.
func spread(b *testing.B, c *cluster, callers int, work func(w *worker) error) {
	workers := make([]*worker, callers)
	for i := range workers {
		workers[i] = newWorker(b, c.nodes[i%len(c.nodes)], i)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	before := cpuTime(b)
	b.ResetTimer()
	for _, w := range workers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := work(w); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

// cpuTime is what all nodes of the cluster have used: on a busy machine it tells
// more than the time that has passed.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// One operation is a lock and its unlock: two commits.
func BenchmarkLockUnlock(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			c := loopback(b, 3, 3)
			defer c.stop()
			spread(b, c, callers, (*worker).lockUnlock)
		})
	}
}

func BenchmarkLinearizableRead(b *testing.B) {
	read := func(w *worker) error {
		_, err := w.client.Query(context.Background(), &machine.Query{Kind: machine.QuerySession, Session: w.session})
		return err
	}
	for _, callers := range []int{64, 256} {
		b.Run(fmt.Sprint("voters/", callers), func(b *testing.B) {
			c := loopback(b, 3, 3)
			defer c.stop()
			spread(b, c, callers, read)
		})
	}
	b.Run("outside/64", func(b *testing.B) {
		c := loopback(b, 4, 3)
		defer c.stop()
		all := c.nodes
		c.nodes = all[3:]
		spread(b, c, 64, read)
		c.nodes = all
	})
}
