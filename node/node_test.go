package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
)

// TestMain fails the run if a closed node left a goroutine behind. A probe of
// memberlist that was under way at Close ends by itself after at most some seconds,
// so Find, which looks for a second or so, is asked more than once.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		var err error
		for range 15 {
			if err = goleak.Find(); err == nil {
				break
			}
		}
		if err != nil {
			fmt.Println("goroutines are left after every node was closed:", err)
			code = 1
		}
	}
	os.Exit(code)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// addrs returns n loopback addresses that were free a moment ago.
func addrs(t testing.TB, n int) (all []string) {
	for range n {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		defer c.Close()
		all = append(all, c.LocalAddr().String())
	}
	return all
}

// real starts n nodes on real sockets and real files and waits until they are ready.
func real(t testing.TB, n int, tune func(i int, c *node.Config)) (nodes []*node.Node, cfgs []node.Config) {
	at := addrs(t, n)
	nodes = make([]*node.Node, n)
	t.Cleanup(func() {
		for _, n := range nodes {
			if n != nil {
				require.NoError(t, n.Close())
			}
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		cfg := node.Config{
			Name: fmt.Sprintf("n%d", i), Cluster: "test", Dir: t.TempDir(), Listen: at[i], Join: at, Expect: n,
			Secret: "a secret of the tests", SessionTTL: 15 * time.Second, Logger: quiet(),
		}
		if tune != nil {
			tune(i, &cfg)
		}
		cfgs = append(cfgs, cfg)
		wg.Go(func() {
			if nodes[i], errs[i] = node.Start(ctx, cfg); errs[i] == nil {
				errs[i] = nodes[i].Ready(ctx)
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	return nodes, cfgs
}

func TestEveryFaultOfAConfigIsNamed(t *testing.T) {
	_, err := node.Start(t.Context(), node.Config{
		Name: "../../etc", Cluster: "-", Listen: "no-port", Advertise: "0.0.0.0:1", Join: []string{"ftp://x"}, Expect: -1,
		Voters: 2, SessionTTL: -1, Pace: 9, Secret: "short", Zone: string(make([]byte, 40)), Labels: map[string]string{"": "x"},
	})
	for _, field := range []string{"Name", "Cluster", "Listen", "Advertise", "Join", "Expect", "Voters", "Pace", "Secret", "Zone", "Labels"} {
		require.ErrorContains(t, err, "config: "+field+":")
	}
	bad, ok := errors.AsType[*node.ConfigError](err)
	require.True(t, ok)
	require.NotEmpty(t, bad.Reason)

	_, err = node.Start(t.Context(), node.Config{Listen: "0.0.0.0:0"})
	require.ErrorContains(t, err, "config: Secret:")
	require.ErrorContains(t, err, "config: Advertise:")
	_, err = node.Start(t.Context(), node.Config{Join: []string{"127.0.0.1:1"}, Expect: 1})
	require.ErrorContains(t, err, "config: Expect:", "every node with this config would found a cluster")
	_, err = node.Start(t.Context(), node.Config{Listen: "192.0.2.1:0", Secret: "0123456789abcdef"})
	require.ErrorContains(t, err, "config: Dir:", "a founder that forgets founds again")
}

func TestADirectoryBelongsToOneNode(t *testing.T) {
	_, cfgs := real(t, 1, nil)
	cfg := cfgs[0]
	cfg.Listen = "127.0.0.1:0"
	_, err := node.Start(t.Context(), cfg)
	require.ErrorIs(t, err, node.ErrDirInUse)
	require.ErrorContains(t, err, cfg.Dir)
}

func TestADirectoryKeepsItsName(t *testing.T) {
	cfg := node.Config{Dir: t.TempDir(), Logger: quiet()}
	n, err := node.Start(t.Context(), cfg)
	require.NoError(t, err)
	name := n.Name()
	require.NoError(t, n.Close())
	require.NoError(t, n.Close(), "again")
	require.NoError(t, n.Leave(t.Context()), "after Close")
	n, err = node.Start(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, name, n.Name())
	require.NoError(t, n.Close())
	cfg.Name = "other"
	_, err = node.Start(t.Context(), cfg)
	require.ErrorIs(t, err, node.ErrNameTaken)
}

func TestAnAddressInUseIsAnErrorOfStart(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer c.Close()
	_, err = node.Start(t.Context(), node.Config{Listen: c.LocalAddr().String(), Logger: quiet()})
	require.ErrorContains(t, err, c.LocalAddr().String())
}

func TestASecretFileIsMadeOnceAndShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	nodes, _ := real(t, 3, func(_ int, c *node.Config) { c.Secret, c.SecretFile = "", file })
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	_, err = nodes[2].KV("").Put(t.Context(), "k", []byte("v"))
	require.NoError(t, err, "all three have the same secret")
}

func TestOtherSecretsAndOtherClustersStayOut(t *testing.T) {
	nodes, cfgs := real(t, 3, nil)
	for name, change := range map[string]func(*node.Config){
		"other secret":  func(c *node.Config) { c.Secret = "another secret of the tests" },
		"other cluster": func(c *node.Config) { c.Cluster = "another" },
	} {
		cfg := cfgs[0]
		cfg.Name, cfg.Dir, cfg.Listen, cfg.Expect = "stranger", t.TempDir(), "127.0.0.1:0", 0
		change(&cfg)
		n, err := node.Start(t.Context(), cfg)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		require.ErrorIs(t, n.Ready(ctx), context.DeadlineExceeded, name)
		cancel()
		for m := range n.Members() {
			require.Equal(t, "stranger", m.Name, name)
		}
		require.NoError(t, n.Close())
	}
	for m := range nodes[0].Members() {
		require.NotEqual(t, "stranger", m.Name)
	}
	_, err := nodes[1].KV("").Put(t.Context(), "k", []byte("v"))
	require.NoError(t, err)
}

func TestAClosedNodeAnswersEveryCallAtOnce(t *testing.T) {
	nodes, _ := real(t, 1, nil)
	n := nodes[0]
	h, err := n.Mutex("m").Lock(t.Context())
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() { _, err := n.Mutex("m").Lock(context.Background()); waiting <- err }()
	watching := make(chan error, 1)
	go func() {
		var last error
		for _, err := range n.KV("").Watch(context.Background(), "") {
			last = err
		}
		watching <- last
	}()
	_, err = n.KV("").Put(t.Context(), "k", nil)
	require.NoError(t, err)
	require.NoError(t, n.Close())
	require.False(t, h.Valid())
	require.ErrorIs(t, context.Cause(h.Context()), lock.ErrLost)
	require.ErrorIs(t, <-waiting, consensus.ErrClosed)
	require.ErrorIs(t, <-watching, consensus.ErrClosed)
	_, err = n.KV("").Get(context.Background(), "k")
	require.ErrorIs(t, err, consensus.ErrClosed)
	_, err = n.Mutex("m").Lock(context.Background())
	require.ErrorIs(t, err, consensus.ErrClosed)
	_, err = n.Status(t.Context())
	require.ErrorIs(t, err, consensus.ErrClosed)
	require.NoError(t, h.Unlock(context.Background()), "nothing is left to free")
}
