package membership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestNodesThatNameOneAnotherFormAtOnce(t *testing.T) {
	for _, n := range []int{3, 10} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			inBubble(t, func(t *testing.T, mem *memnet.Net) {
				nodes := make([]*testNode, n)
				var wg sync.WaitGroup
				start := time.Now()
				for i := range n {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * 7 * time.Millisecond) // processes never start together
						nodes[i] = bring(t, mem, i, seedsOf(n))
					})
				}
				wg.Wait()
				formed(t, time.Second, nodes...)
				t.Logf("%d nodes: %v", n, time.Since(start))
				require.Less(t, time.Since(start), 400*time.Millisecond)
				for _, node := range nodes {
					require.Len(t, node.Seeds(), n)
					require.Len(t, node.Peers(), n-1)
				}
				stopAll(nodes...)
			})
		})
	}
}

func TestOneSeedIsEnoughAlsoWhenItComesLast(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		second := bring(t, mem, 1, seedsOf(1))
		third := bring(t, mem, 2, seedsOf(1))
		time.Sleep(30 * time.Millisecond)
		seed := bring(t, mem, 0, seedsOf(1))
		t.Logf("after the seed: %v", formed(t, time.Second, seed, second, third))
		stopAll(seed, second, third)
	})
}

func TestACrashIsAFailureAndALeaveIsNot(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		start := time.Now()
		require.NoError(t, nodes[4].Leave(t.Context()))
		t.Logf("Leave of 5: %v", time.Since(start))
		nodes[4].stop()
		nodes[3].crash()
		took := eventually(t, 10*time.Second, func() bool {
			return nodes[0].sees("n00", "n01", "n02") && nodes[1].sees("n00", "n01", "n02") && nodes[2].sees("n00", "n01", "n02")
		}, "crash noticed")
		t.Logf("crash noticed by all after %v", took)
		synctest.Wait()
		for _, n := range nodes[:3] {
			require.Equal(t, []Kind{Joined, Leaving, Left}, n.kinds("n04"))
			require.Equal(t, []Kind{Joined, Failed}, n.kinds("n03"))
			_, _, known := n.Lookup("n04")
			require.False(t, known, "who left has no address")
			addr, boot, known := n.Lookup("n03")
			require.True(t, known, "who failed may still answer")
			require.Equal(t, netip.MustParseAddrPort(ip(3)), addr)
			require.EqualValues(t, 1, boot)
			require.Equal(t, StateFailed, slices.Collect(n.Members())[3].State)
		}
		stopAll(nodes[:3]...)
	})
}

// closingWire is a transport that reports what it knows of dead peers, as connections do.
type closingWire struct {
	*transport.Transport
	dead netip.AddrPort
}

func (w closingWire) WritePacket(b []byte, to netip.AddrPort, name string) error {
	if to == w.dead {
		return errors.New("connection is closed")
	}
	return w.Transport.WritePacket(b, to, name)
}

func TestADeadPeerIsMissedAlsoWhenWritingToItFails(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3), func(c *nodeConfig) {
			c.wrap = func(tr *transport.Transport) wire { return closingWire{tr, netip.MustParseAddrPort(ip(2))} }
		})
		nodes[2].crash()
		eventually(t, 10*time.Second, func() bool { return nodes[0].sees("n00", "n01") && nodes[1].sees("n00", "n01") }, "crash noticed")
		stopAll(nodes[:2]...)
	})
}

func TestCloseWithoutLeaveIsAFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		nodes[2].stop() // its transport says good-bye, the node does not
		eventually(t, 10*time.Second, func() bool { return nodes[0].sees("n00", "n01") && nodes[1].sees("n00", "n01") }, "missed")
		synctest.Wait()
		require.Equal(t, []Kind{Joined, Failed}, nodes[0].kinds("n02"))
		stopAll(nodes[:2]...)
	})
}

// muteWire is a transport that loses the news which memberlist gossips of living nodes.
type muteWire struct {
	*transport.Transport
	mute *atomic.Bool
}

func (w muteWire) WritePacket(b []byte, to netip.AddrPort, name string) error {
	const crc, alive, compound = 12, 4, 7 // memberlist's types of messages
	kind := b[0]
	if kind == crc {
		kind = b[5]
	}
	if w.mute.Load() && (kind == alive || kind == compound) {
		return nil
	}
	return w.Transport.WritePacket(b, to, name)
}

func TestAFarewellDoesNotDependOnGossip(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		var mute atomic.Bool
		nodes := group(t, mem, 2, seedsOf(2), func(c *nodeConfig) {
			c.wrap = func(tr *transport.Transport) wire { return muteWire{tr, &mute} }
		})
		time.Sleep(time.Second)
		mute.Store(true)
		require.NoError(t, nodes[1].Leave(t.Context()))
		synctest.Wait()
		require.Equal(t, []Kind{Joined, Leaving, Left}, nodes[0].kinds("n01"))
		stopAll(nodes...)
	})
}

func TestALeaveIsHeardInSpiteOfLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 6, seedsOf(6))
		mem.SetAll(memnet.Rule{Drop: 0.2, Delay: 2 * time.Millisecond, Jitter: 5 * time.Millisecond})
		require.NoError(t, nodes[5].Leave(t.Context()))
		nodes[5].stop()
		time.Sleep(5 * time.Second)
		for _, n := range nodes[:5] {
			require.Equal(t, []Kind{Joined, Leaving, Left}, n.kinds("n05"))
		}
		stopAll(nodes[:5]...)
	})
}

func TestTheLastNodeLeavesWithoutWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		n := bring(t, mem, 0, nil)
		start := time.Now()
		require.NoError(t, n.Leave(t.Context()))
		require.NoError(t, n.Leave(t.Context()))
		require.Zero(t, time.Since(start))
		n.stop()
	})
}

func TestLeavesAndClosesAtOnceEndTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 2, seedsOf(2))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { require.NoError(t, nodes[1].Leave(t.Context())) })
		}
		wg.Wait()
		wg.Go(func() { nodes[0].Leave(t.Context()) })
		wg.Go(func() { require.NoError(t, nodes[0].Close()) })
		wg.Wait()
		stopAll(nodes...)
	})
}

func TestALeaveEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 2, seedsOf(2))
		cause := errors.New("hurry")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.ErrorIs(t, nodes[1].Leave(ctx), cause)
		done := make(chan error)
		go func() { done <- nodes[0].Leave(t.Context()) }()
		time.Sleep(time.Millisecond)
		require.NoError(t, nodes[0].Close())
		require.ErrorIs(t, <-done, ErrClosed)
		stopAll(nodes...)
	})
}

func TestARestartAtTheSameAddressIsSeenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		nodes[4].crash()
		nodes[4] = nodes[4].again(mem)
		took := eventually(t, time.Second, func() bool {
			return !slices.ContainsFunc(nodes[:4], func(n *testNode) bool {
				_, boot, _ := n.Lookup("n04")
				return boot != 2
			})
		}, "new boot known")
		t.Logf("restart known to all after %v", took)
		time.Sleep(time.Minute) // the old boot is missed in silence
		for _, n := range nodes[:4] {
			require.Equal(t, []Kind{Joined, Restarted}, n.kinds("n04"))
		}
		formed(t, time.Second, nodes...)
		stopAll(nodes...)
	})
}

func TestARestartElsewhereIsSeenAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		nodes[2].crash()
		nodes[2] = bring(t, mem, 7, seedsOf(3), func(c *nodeConfig) { c.name, c.boot = "n02", 2 })
		eventually(t, time.Second, func() bool {
			addr, _, _ := nodes[0].Lookup("n02")
			return addr == netip.MustParseAddrPort(ip(7))
		}, "new address known")
		stopAll(nodes...)
	})
}

func TestALongSplitHeals(t *testing.T) {
	for name, forget := range map[string]bool{"by the seed on one side": false, "by calling on the lost": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, mem *memnet.Net) {
				var forgotten atomic.Bool
				nodes := group(t, mem, 6, nil, func(c *nodeConfig) {
					c.Discover = found(func() ([]netip.AddrPort, error) {
						if forgotten.Load() {
							return nil, nil
						}
						return addrs(ip(0)), nil
					})
				})
				mem.Partition(seedsOf(3), []string{ip(3), ip(4), ip(5)})
				eventually(t, 30*time.Second, func() bool {
					return nodes[0].sees("n00", "n01", "n02") && nodes[5].sees("n03", "n04", "n05")
				}, "split seen")
				forgotten.Store(forget)
				time.Sleep(time.Minute) // gossip has forgotten the other side
				mem.Heal()
				t.Logf("healed after %v", formed(t, 15*time.Second, nodes...))
				stopAll(nodes...)
			})
		})
	}
}

// lingering is a Discoverer that takes a second to notice the end of its context.
type lingering struct{ left *atomic.Bool }

func (l lingering) Discover(ctx context.Context) ([]netip.AddrPort, error) {
	<-ctx.Done()
	time.Sleep(time.Second)
	l.left.Store(true)
	return nil, ctx.Err()
}

func TestCloseAndAStartCutShortWaitForWhatTheyStarted(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		first := bring(t, mem, 0, nil)
		var left atomic.Bool
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := Start(ctx, Config{Transport: first.net, Discover: lingering{&left}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.True(t, left.Load())
		first.stop()
	})
}

func TestIslandsThatWereBornApartMeetThroughTheirSeeds(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		mem.Partition(seedsOf(2), []string{ip(2), ip(3)})
		var nodes []*testNode
		for i := range 4 {
			nodes = append(nodes, bring(t, mem, i, seedsOf(4)))
		}
		eventually(t, 5*time.Second, func() bool { return nodes[0].sees("n00", "n01") && nodes[3].sees("n02", "n03") }, "islands")
		mem.Heal()
		t.Logf("met after %v", formed(t, 15*time.Second, nodes...))
		stopAll(nodes...)
	})
}

func TestLossOfAFifthIsNoFailure(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		mem.SetAll(memnet.Rule{Drop: 0.2, Dup: 0.01, Delay: 2 * time.Millisecond, Jitter: 5 * time.Millisecond})
		var nodes []*testNode
		for i := range 5 {
			nodes = append(nodes, bring(t, mem, i, seedsOf(5)))
		}
		formed(t, 10*time.Second, nodes...)
		time.Sleep(2 * time.Minute)
		for _, n := range nodes {
			for _, e := range n.events("") {
				require.NotEqual(t, Failed, e.Kind, "%v", e)
			}
		}
		stopAll(nodes...)
	})
}

func TestNotesReachAllBeforeLong(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 5, seedsOf(5))
		time.Sleep(time.Second)
		for term := range uint64(20) { // a burst, of which the last must not be lost
			nodes[0].Note(Note{Term: term, Leader: true, Voter: term == 19})
			time.Sleep(time.Millisecond)
		}
		took := eventually(t, time.Second, func() bool {
			return !slices.ContainsFunc(nodes[1:], func(n *testNode) bool { return n.Peers()[0].Note.Term != 19 })
		}, "last note known")
		t.Logf("last note of a burst known to all after %v", took)
		require.Less(t, took, 300*time.Millisecond)
		synctest.Wait()
		require.Equal(t, []Kind{Joined, Updated}, nodes[4].kinds("n00"), "only a visible change is an event")
		stopAll(nodes...)
	})
}

func TestChangedWakesWhoWaitsForPeers(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		first := bring(t, mem, 0, nil)
		changed := first.Changed()
		second := bring(t, mem, 1, seedsOf(1), func(c *nodeConfig) {
			c.Zone, c.Labels = "east", map[string]string{"disk": "fast"}
		})
		<-changed
		m := slices.Collect(first.Members())[1]
		require.Equal(t, "east", m.Zone)
		require.Equal(t, map[string]string{"disk": "fast"}, m.Labels)
		changed = first.Changed()
		first.stop()
		<-changed
		second.stop()
	})
}

func TestNothingIsToldAfterClose(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		nodes[1].crash()
		time.Sleep(2 * time.Second) // suspected: memberlist will declare it dead later
		require.NoError(t, nodes[0].Close())
		before := len(nodes[0].events(""))
		changed := nodes[0].Changed()
		time.Sleep(30 * time.Second)
		require.Len(t, nodes[0].events(""), before)
		require.Equal(t, changed, nodes[0].Changed())
		select {
		case <-changed:
			t.Fatal("whoever waits for changes of an ended List spins")
		default:
		}
		for _, err := range nodes[0].Events(t.Context()) {
			require.ErrorIs(t, err, ErrClosed)
		}
		stopAll(nodes[0], nodes[2])
	})
}

func TestAWatchEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		n := bring(t, mem, 0, nil)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		cause := errors.New("enough")
		var kinds []Kind
		for e, err := range n.Events(ctx) {
			if err != nil {
				require.ErrorIs(t, err, cause)
				break
			}
			if kinds = append(kinds, e.Kind); e.Kind == Synced {
				cancel(cause)
			}
		}
		require.Equal(t, []Kind{Joined, Synced}, kinds)
		n.stop()
	})
}

func TestAStrangerNeverBecomesAMember(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 2, seedsOf(2))
		stranger := bring(t, mem, 2, seedsOf(2), func(c *nodeConfig) { c.secret = bytes.Repeat([]byte("x"), 32) })
		time.Sleep(time.Minute)
		require.True(t, stranger.sees("n02"))
		for _, n := range nodes {
			require.Empty(t, n.events("n02"))
		}
		stopAll(append(nodes, stranger)...)
	})
}

func TestTwoFoundedClustersDoNotMerge(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		a, b := bring(t, mem, 0, nil), bring(t, mem, 1, nil)
		a.Note(Note{Cluster: 1})
		b.Note(Note{Cluster: 2})
		time.Sleep(time.Second)
		c := bring(t, mem, 2, seedsOf(2), func(c *nodeConfig) { c.Zone = "new" })
		time.Sleep(time.Minute)
		require.Empty(t, a.events("n01"))
		require.Empty(t, b.events("n00"))
		require.NotEmpty(t, a.events("n02"), "a node of no cluster is welcome")
		stopAll(a, b, c)
	})
}

func TestACopiedNameIsAConflictAndTheNewestBootIsShown(t *testing.T) {
	inBubble(t, func(t *testing.T, mem *memnet.Net) {
		nodes := group(t, mem, 3, seedsOf(3))
		twin := bring(t, mem, 5, seedsOf(3), func(c *nodeConfig) { c.name, c.boot = "n01", 9 })
		time.Sleep(3 * time.Minute)
		_, boot, _ := nodes[0].Lookup("n01")
		require.EqualValues(t, 9, boot)
		require.Equal(t, []Kind{Joined, Restarted, Conflict}, nodes[0].kinds("n01"))
		require.Equal(t, []Kind{Joined, Conflict}, nodes[1].kinds("n01"), "the older one learns of it too")
		stopAll(append(nodes, twin)...)
	})
}
