package consensus

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

func TestACallerIsSentOnToTheNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) { cfg.Expect, cfg.NonVoter = 3, i == 3 })
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		outsider := c.nodes[3]
		require.NoError(t, outsider.put(ctx, "a", "1"))
		old := c.leader()
		require.NoError(t, old.engine.Resign(ctx))
		began := time.Now()
		require.NoError(t, outsider.put(ctx, "b", "2"))
		require.Less(t, time.Since(began), 50*time.Millisecond, "the old leader said who the new one is")

		outsider.engine.client.compass.learn(1000, old.cfg.Name)
		l := c.leader()
		c.net.Isolate(l.addr)
		time.Sleep(time.Second)
		c.net.Heal()
		require.NoError(t, outsider.put(ctx, "c", "3"), "a wrong hint costs time and nothing else")
	})
}

func TestAReadAtAnyVoterSeesWhatWasAnsweredBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) { cfg.Expect, cfg.NonVoter = 3, i == 3 })
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		for i := range 200 {
			want := fmt.Sprint(i)
			require.NoError(t, c.nodes[3].put(ctx, "k", want))
			var wg sync.WaitGroup
			for _, n := range c.nodes {
				wg.Go(func() {
					got, err := n.get(ctx, "k")
					require.NoError(t, err)
					require.Equal(t, want, got, "at %s", n.cfg.Name)
				})
			}
			wg.Wait()
		}
	})
}

func TestAnAnswerToAnOldRoundOfReadsConfirmsNothing(t *testing.T) {
	v := &voter{confirmed: make(chan confirmed, 2)}
	v.confirm(confirmed{round: 1, index: 10})
	v.confirm(confirmed{round: 2, index: 20})
	index, ok := v.awaitRound(t.Context(), 2, nil)
	require.True(t, ok)
	require.Equal(t, uint64(20), index)
}

func TestEachCallerGetsTheAnswerToItsOwnCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) { cfg.Expect, cfg.NonVoter = 3, i == 3 })
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 200 {
			n := c.nodes[i%len(c.nodes)]
			w := newWorker(t, n, i)
			wg.Go(func() {
				for turn := range 5 {
					r, err := w.do(machine.OpAdd, &machine.Add{Name: fmt.Sprint(i), Delta: int64(i)})
					require.NoError(t, err)
					require.Equal(t, uint64(i*(turn+1)), r.N)
				}
			})
		}
		wg.Wait()
		require.NoError(t, c.nodes[3].put(ctx, "a", "1"))
	})
}

func TestSnapshotsShortenTheLogAndARestartBeginsWithThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		ctx, cancel := within(600 * time.Second)
		defer cancel()
		n := c.nodes[0]
		const writes = snapshotEntries + 500
		for i := range writes {
			require.NoError(t, n.put(ctx, fmt.Sprint("k", i%100), fmt.Sprint(i)))
		}
		v := n.engine.replica()
		first, err := v.log.FirstIndex()
		require.NoError(t, err)
		require.Equal(t, uint64(2), first, "segments are larger than all of this")
		snap, err := v.log.Snapshot()
		require.NoError(t, err)
		require.Greater(t, snap.GetMetadata().GetIndex(), uint64(snapshotEntries)/2)
		before := n.engine.Status()
		n.stop()
		n.start()
		defer c.stop()
		require.NoError(t, n.engine.Ready(ctx))
		require.GreaterOrEqual(t, n.engine.Status().Applied, before.Applied)
		got, err := n.get(ctx, "k99")
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(writes-1), got)
		cmd := machine.Cmd{Session: n.session, Seq: n.seq, Floor: n.seq, Op: machine.OpTick}
		r, err := n.engine.Client().Do(ctx, cmd)
		require.NoError(t, err)
		require.Equal(t, machine.OK, r.Code, "sessions and their answers are in it")
	})
}

func TestALogInMemoryGivesBackWhatASnapshotCovers(t *testing.T) {
	real := inMemory
	inMemory = sizes{snapshot: 1 << 20, keep: 3 << 20}
	defer func() { inMemory = real }()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, func(_ int, cfg *Config) { cfg.Dir, cfg.FS = "", nil })
		defer c.stop()
		ctx, cancel := within(600 * time.Second)
		defer cancel()
		n := c.leader()
		value := make([]byte, 64<<10)
		const writes = 100
		for range writes { // refused, so that only the log grows
			r, err := n.do(ctx, machine.OpTxn, &machine.Txn{Checks: []machine.Check{{Key: "k", Rev: 1}},
				Ops: []machine.KeyOp{{Kind: machine.KeyPut, Key: "k", Value: value}}})
			require.NoError(t, err)
			require.Equal(t, machine.Conflict, r.Code)
		}
		time.Sleep(time.Second)
		for _, n := range c.nodes {
			require.Less(t, n.engine.replica().log.Bytes(), int64(writes*len(value))-1<<20, n.cfg.Name)
		}
	})
}

func TestOnlyTheLeaderItselfExpiresSessions(t *testing.T) {
	require.Error(t, lawful(machine.Encode(&machine.Cmd{Op: machine.OpExpire})))
	require.Error(t, lawful(machine.Encode(&machine.Cmd{Op: machine.OpTick})))
	require.Error(t, lawful([]byte{0xff}))
	require.NoError(t, lawful(machine.Encode(&machine.Cmd{Session: 1, Seq: 1, Op: machine.OpAdd})))
}
