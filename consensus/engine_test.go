package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

// leader waits until some node serves as the leader.
func (c *cluster) leader() *node {
	for {
		for _, n := range c.nodes {
			if n.engine == nil {
				continue
			}
			if v := n.engine.replica(); v != nil && v.office() != nil {
				return n
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestOneNodeFoundsAloneAndServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		c := newCluster(t, 1)
		defer c.stop()
		ctx, cancel := within(10 * time.Second)
		defer cancel()
		n := c.nodes[0]
		require.NoError(t, n.put(ctx, "a", "1"))
		require.Less(t, time.Since(began), 50*time.Millisecond, "no election timeout and no settling is waited for")
		v, err := n.get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "1", v)
		require.NoError(t, n.engine.Ready(ctx))
		s := n.engine.Status()
		require.Equal(t, "n0", s.Leader)
		require.Equal(t, []string{"n0"}, s.Voters)
		require.Zero(t, s.Tolerates)
		require.NoError(t, n.engine.Resign(ctx), "the only voter keeps its office")
	})
}

func TestThreeNodesFoundOneClusterAndAllCanWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(10 * time.Second)
		defer cancel()
		for i, n := range c.nodes {
			require.NoError(t, n.put(ctx, fmt.Sprint("k", i), "v"))
		}
		for _, n := range c.nodes {
			for i := range c.nodes {
				v, err := n.get(ctx, fmt.Sprint("k", i))
				require.NoError(t, err)
				require.Equal(t, "v", v)
			}
			require.Len(t, n.engine.Status().Voters, 3)
			require.Equal(t, c.leader().cfg.Name, n.engine.Status().Leader)
		}
		time.Sleep(100 * time.Millisecond) // two heartbeats
		require.Equal(t, 1, c.leader().engine.Status().Tolerates)
	})
}

func TestNodesThatOnlyJoinUseTheClusterOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) {
			cfg.Expect = 3
			if i == 3 {
				cfg.NonVoter = true
			}
		})
		defer c.stop()
		ctx, cancel := within(10 * time.Second)
		defer cancel()
		n := c.nodes[3]
		require.NoError(t, n.put(ctx, "a", "1"))
		v, err := n.get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "1", v)
		require.Nil(t, n.engine.replica())
		require.Len(t, n.engine.Status().Voters, 3)
		require.Equal(t, c.leader().cfg.Name, n.engine.Status().Leader)
	})
}

func TestALeaderThatDiesIsReplacedAndNothingIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) {
			cfg.Expect, cfg.NonVoter = 3, i == 3
		})
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		outsider := c.nodes[3]
		require.NoError(t, outsider.put(ctx, "a", "1"))
		dead := c.leader()
		dead.kill()
		began := time.Now()
		require.NoError(t, outsider.put(ctx, "b", "2"))
		t.Logf("write after the leader's death: %v", time.Since(began))
		require.Less(t, time.Since(began), 1200*time.Millisecond)
		v, err := outsider.get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "1", v)

		c.net.Heal()
		dead.start()
		require.NoError(t, dead.engine.Ready(ctx))
		v, err = dead.get(ctx, "b")
		require.NoError(t, err)
		require.Equal(t, "2", v)
	})
}

func TestWithoutAQuorumCallsEndByTheirContextAndComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		n := c.leader()
		require.NoError(t, n.put(ctx, "a", "1"))
		c.net.Partition([]string{c.nodes[0].addr}, []string{c.nodes[1].addr}, []string{c.nodes[2].addr})

		short, stop := context.WithTimeoutCause(ctx, 2*time.Second, errors.New("my patience"))
		defer stop()
		cmd, err := n.cmd(ctx, machine.OpAdd, &machine.Add{Name: "c", Delta: 5})
		require.NoError(t, err)
		_, err = n.engine.Client().Do(short, cmd)
		require.ErrorIs(t, err, ErrUnknown, "the old leader took it")
		require.NotErrorIs(t, err, ErrNoQuorum)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "my patience")
		var unknown *UnknownError
		require.ErrorAs(t, err, &unknown)

		again, stop := within(time.Second)
		defer stop()
		_, err = n.engine.Client().Do(again, cmd)
		require.ErrorIs(t, err, ErrNoQuorum, "by now nobody leads and nobody can have taken it")
		require.NotErrorIs(t, err, ErrUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = n.get(again, "a")
		require.ErrorIs(t, err, ErrNoQuorum)

		c.net.Heal()
		require.NoError(t, unknown.Retry(ctx))
		r, known := unknown.Outcome()
		require.True(t, known)
		require.Equal(t, uint64(5), r.N, "asked three times, done once")
	})
}

func TestAClusterRestartsFromItsDisks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		for i := range 20 {
			require.NoError(t, c.nodes[i%3].put(ctx, fmt.Sprint("k", i), fmt.Sprint(i)))
		}
		hash := c.nodes[0].engine.hash()
		c.stop()
		for _, n := range c.nodes {
			n.start()
		}
		defer c.stop()
		for i := range 20 {
			v, err := c.nodes[(i+1)%3].get(ctx, fmt.Sprint("k", i))
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), v)
		}
		require.Equal(t, hash, c.nodes[0].engine.hash(), "it is the same cluster")
	})
}

func TestAVoterWhoseLogIsGoneNeverVotesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		require.NoError(t, c.nodes[0].put(ctx, "a", "1"))
		n := c.nodes[1]
		for n.engine.replica() == nil { // the other two were enough for the write
			time.Sleep(time.Millisecond)
		}
		old := n.engine.founder.identity().RaftID
		n.stop()
		require.NoError(t, (&store{fs: n.fs, dir: "data"}).dropLog())
		n.start()
		require.NotEqual(t, old, n.engine.founder.identity().RaftID)
		v, err := n.get(ctx, "a")
		require.NoError(t, err, "it is a client of its old cluster")
		require.Equal(t, "1", v)
		require.Nil(t, n.engine.replica())
	})
}

func TestCommandsAreAppliedOnceWhateverIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(300 * time.Second)
		defer cancel()
		c.leader()
		const each = 60
		var wg sync.WaitGroup
		for _, n := range c.nodes {
			wg.Go(func() {
				for range each {
					r, err := n.do(ctx, machine.OpAdd, &machine.Add{Name: "c", Delta: 1})
					require.NoError(t, err)
					require.Equal(t, machine.OK, r.Code)
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		for range 4 {
			time.Sleep(200 * time.Millisecond)
			l := c.leader()
			c.net.Isolate(l.addr)
			time.Sleep(700 * time.Millisecond)
			c.net.Heal()
		}
		wg.Wait()
		r, err := c.nodes[0].engine.Client().Query(ctx, &machine.Query{Kind: machine.QueryCounter, Name: "c"})
		require.NoError(t, err)
		require.Equal(t, uint64(3*each), r.N)
	})
}

func TestAWatchHasNoGapAcrossLeaderChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) { cfg.Expect, cfg.NonVoter = 3, i == 3 })
		defer c.stop()
		ctx, cancel := within(300 * time.Second)
		defer cancel()
		writer := c.nodes[3]
		require.NoError(t, writer.put(ctx, "w/before", "x"))
		const n = 200
		seen := make([]chan error, len(c.nodes))
		ready := make(chan struct{}, len(c.nodes))
		for i, nd := range c.nodes {
			seen[i] = make(chan error, 1)
			go func() { seen[i] <- watchAll(ctx, nd.engine.Client(), n, ready) }()
		}
		for range c.nodes {
			<-ready
		}
		for i := range n {
			require.NoError(t, writer.put(ctx, fmt.Sprintf("w/%04d", i), "x"))
			if i%50 == 25 {
				l := c.leader()
				c.net.Isolate(l.addr)
				time.AfterFunc(900*time.Millisecond, c.net.Heal)
			}
			time.Sleep(10 * time.Millisecond)
		}
		for i := range seen {
			require.NoError(t, <-seen[i], "watcher on n%d", i)
		}
	})
}

func watchAll(ctx context.Context, c *Client, n int, ready chan<- struct{}) error {
	next, last, synced := 0, machine.Rev(0), false
	for u, err := range c.Watch(ctx, machine.TopicKeys, "w/", 0) {
		switch {
		case err != nil:
			return err
		case u.Synced && !synced:
			synced = true
			ready <- struct{}{}
		case u.Synced:
		case u.Rev <= last:
			return fmt.Errorf("revision %d after %d", u.Rev, last)
		case u.Event.Name != fmt.Sprintf("w/%04d", next):
			return fmt.Errorf("%s where number %d was due", u.Event.Name, next)
		default:
			if next++; next == n {
				return nil
			}
			last = u.Rev
		}
	}
	return errors.New("the watch ended without a reason")
}

func TestAWatchFromARevisionBeginsWithHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		n := c.nodes[0]
		require.NoError(t, n.put(ctx, "h/1", "x"))
		r, err := n.engine.Client().Query(ctx, &machine.Query{Kind: machine.QueryKey, Name: "h/1"})
		require.NoError(t, err)
		require.NoError(t, n.put(ctx, "h/2", "x"))
		require.NoError(t, n.put(ctx, "h/3", "x"))
		var got []string
		for u, err := range n.engine.Client().Watch(ctx, machine.TopicKeys, "h/", r.Rev) {
			require.NoError(t, err)
			if u.Synced {
				break
			}
			got = append(got, u.Event.Name)
		}
		require.Equal(t, []string{"h/2", "h/3"}, got)
	})
}

func TestEventsGoToTheNodeOfTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, func(i int, cfg *Config) { cfg.Expect, cfg.NonVoter = 3, i == 3 })
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		a, b := c.nodes[3], c.leader()
		acquire := &machine.Acquire{Space: machine.SpaceLock, Name: "l"}
		held, err := b.do(ctx, machine.OpAcquire, acquire)
		require.NoError(t, err)
		require.Equal(t, machine.OK, held.Code)
		target := b.seq
		require.NoError(t, a.put(ctx, "opens", "a session"))
		granted := make(chan machine.Event, 8)
		defer a.engine.Client().Route(a.session, func(e machine.Event) { granted <- e })()
		r, err := a.do(ctx, machine.OpAcquire, acquire)
		require.NoError(t, err)
		require.Equal(t, machine.Queued, r.Code)
		_, err = b.do(ctx, machine.OpRelease, &machine.Release{Space: machine.SpaceLock, Name: "l", Target: target, Token: held.Token})
		require.NoError(t, err)
		e := <-granted
		require.Equal(t, machine.EventGranted, e.Kind)
		require.Equal(t, a.seq, e.Seq)

		l := c.leader()
		l.kill()
		e = <-granted
		require.Equal(t, EventResync, e.Kind, "a new leader knows nothing of what the old one pushed")
	})
}

func TestResignHandsTheLeadershipOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		old := c.leader()
		require.NoError(t, old.put(ctx, "a", "1"))
		began := time.Now()
		require.NoError(t, old.engine.Resign(ctx))
		require.NoError(t, old.put(ctx, "b", "2"))
		require.Less(t, time.Since(began), 50*time.Millisecond)
		require.NotEqual(t, old.cfg.Name, c.leader().cfg.Name)
	})
}

func TestAfterCloseEveryCallEndsWithErrClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		n := c.nodes[0]
		require.NoError(t, n.put(ctx, "a", "1"))
		cl := n.engine.Client()
		c.nodes[1].kill()
		c.nodes[2].kill()
		pending := make(chan error, 3)
		go func() { pending <- n.put(ctx, "b", "1") }()
		go func() { _, err := n.get(ctx, "b"); pending <- err }()
		go func() {
			for _, err := range cl.Watch(ctx, machine.TopicKeys, "", 0) {
				if err != nil {
					pending <- err
				}
			}
		}()
		time.Sleep(time.Second)
		n.stop()
		for range 3 {
			require.ErrorIs(t, <-pending, ErrClosed)
		}
		_, err := cl.Do(ctx, machine.Cmd{Op: machine.OpTick})
		require.ErrorIs(t, err, ErrClosed)
		_, err = cl.Query(ctx, &machine.Query{Kind: machine.QueryKey})
		require.ErrorIs(t, err, ErrClosed)
	})
}

func TestTooMuchAtOnceIsRefusedBeforeItIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, func(_ int, cfg *Config) { cfg.Expect = 3 })
		defer c.stop()
		ctx, cancel := context.WithCancel(context.Background())
		cl := c.nodes[0].engine.Client()
		ended := make(chan error, maxOutstanding)
		for i := range maxOutstanding {
			go func() {
				_, err := cl.Do(ctx, machine.Cmd{Session: 1, Seq: uint64(i + 1), Op: machine.OpAdd})
				ended <- err
			}()
		}
		synctest.Wait()
		_, err := cl.Do(ctx, machine.Cmd{Session: 1, Seq: 1 << 20, Op: machine.OpAdd})
		require.ErrorIs(t, err, ErrOverloaded)
		soon, stop := context.WithTimeout(ctx, time.Second)
		_, err = cl.Do(soon, machine.Cmd{Op: machine.OpKeepAlive})
		require.ErrorIs(t, err, ErrNoQuorum, "what renews and gives back is taken all the same")
		stop()
		_, err = cl.Do(ctx, machine.Cmd{Op: machine.OpTxn, Body: make([]byte, maxCommand)})
		require.ErrorIs(t, err, ErrInvalid)
		cancel()
		for range maxOutstanding {
			err := <-ended
			require.ErrorIs(t, err, ErrNoQuorum)
			require.ErrorContains(t, err, "1 of the 3 nodes", "it says what is missing")
		}
	})
}

func TestABrokenDiskEndsTheReplicaAndNotTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		l := c.leader()
		require.NoError(t, l.put(ctx, "a", "1"))
		breakDisk(l.fs)
		require.NoError(t, l.put(ctx, "b", "2"), "the others go on, and this node uses them")
		require.Error(t, l.engine.Err())
		require.NotEqual(t, l.cfg.Name, c.leader().cfg.Name)
		v, err := l.get(ctx, "a")
		require.NoError(t, err)
		require.Equal(t, "1", v)
	})
}

func TestAHungDiskCostsTheLeaderItsOffice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3)
		defer c.stop()
		ctx, cancel := within(60 * time.Second)
		defer cancel()
		l := c.leader()
		require.NoError(t, l.put(ctx, "a", "1"))
		release := hangDisk(l.fs)
		began := time.Now()
		other := c.nodes[0]
		if other == l {
			other = c.nodes[1]
		}
		require.NoError(t, other.put(ctx, "b", "2"))
		require.Less(t, time.Since(began), 3*time.Second)
		t.Logf("write after the leader's disk hung: %v", time.Since(began))
		release()
		require.NoError(t, l.put(ctx, "c", "3"))
		require.NoError(t, l.engine.Err())
	})
}
