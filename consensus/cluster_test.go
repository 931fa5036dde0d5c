package consensus

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/transport"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// board is the roster of a test: everybody sees at once what anybody announces.
type board struct {
	mu      sync.Mutex // guards what follows
	peers   map[string]Peer
	changed chan struct{}
}

func (b *board) put(name string, change func(*Peer)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.peers[name]
	change(&p)
	b.peers[name] = p
	close(b.changed)
	b.changed = make(chan struct{})
}

type boardView struct {
	*board
	name string
}

func (v boardView) Peers() []Peer {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []Peer
	for name, p := range v.peers {
		if name != v.name {
			all = append(all, p)
		}
	}
	return all
}

func (v boardView) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v boardView) Announce(a Announcement) {
	v.put(v.name, func(p *Peer) { p.Announcement = a })
}

func (v boardView) Seeds() []netip.AddrPort { return nil }

func (v boardView) Lookup(name string) (netip.AddrPort, uint64, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.peers[name]
	return p.Addr, p.Boot, ok
}

// cluster is a few nodes of a test over a network in memory, or over real sockets.
type cluster struct {
	t     testing.TB
	net   *memnet.Net // nil: UDP on loopback
	board *board
	boots atomic.Uint64
	pace  Pace
	nodes []*node
}

type node struct {
	cluster *cluster
	cfg     Config
	addr    string
	fs      *vfs.Mem // nil: the operating system's, in dir
	engine  *Engine
	session machine.SessionID
	seq     uint64
}

func newCluster(t testing.TB, n int, change ...func(i int, c *Config)) *cluster {
	c := &cluster{t: t, net: memnet.New(1), pace: Fast, board: &board{peers: map[string]Peer{}, changed: make(chan struct{})}}
	c.add(n, change...)
	return c
}

func (c *cluster) add(n int, change ...func(i int, c *Config)) {
	for i := range n {
		nd := &node{cluster: c, addr: fmt.Sprintf("10.0.0.%d:7000", i+1), fs: vfs.NewMem()}
		nd.cfg = Config{Name: fmt.Sprintf("n%d", i), Cluster: "test", FS: nd.fs, Dir: "data", Expect: n, Pace: c.pace}
		for _, f := range change {
			f(i, &nd.cfg)
		}
		c.nodes = append(c.nodes, nd)
	}
	for _, nd := range c.nodes {
		nd.start()
	}
}

func (n *node) start() {
	c := n.cluster
	var conn net.PacketConn
	var err error
	if c.net != nil {
		conn, err = c.net.Listen(n.addr)
	} else {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	require.NoError(c.t, err)
	addr := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	n.cfg.Boot = c.boots.Add(1)
	level := slog.LevelError
	if os.Getenv("CLATTER_DEBUG") != "" {
		level = slog.LevelDebug
	}
	n.cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("node", n.cfg.Name)
	n.cfg.Transport, err = transport.New(transport.Config{
		Conn: conn, Advertise: addr, Name: n.cfg.Name, Boot: n.cfg.Boot, Cluster: "test",
		Secrets: [][]byte{[]byte("0123456789abcdef")}, Logger: n.cfg.Logger,
	})
	require.NoError(c.t, err)
	view := boardView{c.board, n.cfg.Name}
	n.cfg.Transport.Use(view)
	n.cfg.Roster = view
	c.board.put(n.cfg.Name, func(p *Peer) { *p = Peer{Name: n.cfg.Name, Boot: n.cfg.Boot, Addr: addr} })
	n.engine, err = Start(context.Background(), n.cfg)
	require.NoError(c.t, err)
}

// stop ends a node in good order.
func (n *node) stop() {
	if n.engine == nil {
		return
	}
	require.NoError(n.cluster.t, n.engine.Close())
	require.NoError(n.cluster.t, n.cfg.Transport.Close())
	n.engine = nil
}

// kill ends a node without a word to the others.
func (n *node) kill() {
	n.cluster.net.Isolate(n.addr)
	n.stop()
	n.cluster.board.put(n.cfg.Name, func(p *Peer) { p.Dead = true })
}

func (c *cluster) stop() {
	for _, n := range c.nodes {
		n.stop()
	}
}

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// cmd makes the node's next command, in its own session.
func (n *node) cmd(ctx context.Context, op machine.Op, body machine.Message) (machine.Cmd, error) {
	if n.session == 0 {
		r, err := n.engine.Client().Do(ctx, machine.Cmd{Op: machine.OpOpenSession, Body: machine.Encode(&machine.OpenSession{
			TTL: uint64(time.Hour), Node: n.cfg.Name, Boot: n.cfg.Boot, Nonce: n.cfg.Boot + 1000})})
		if err != nil {
			return machine.Cmd{}, err
		}
		n.session = machine.SessionID(r.N)
	}
	n.seq++
	return machine.Cmd{Session: n.session, Seq: n.seq, Floor: n.seq, Op: op, Body: machine.Encode(body)}, nil
}

func (n *node) do(ctx context.Context, op machine.Op, body machine.Message) (machine.Result, error) {
	cmd, err := n.cmd(ctx, op, body)
	if err != nil {
		return machine.Result{}, err
	}
	return n.engine.Client().Do(ctx, cmd)
}

func (n *node) put(ctx context.Context, key, value string) error {
	r, err := n.do(ctx, machine.OpTxn, &machine.Txn{Ops: []machine.KeyOp{{Kind: machine.KeyPut, Key: key, Value: []byte(value)}}})
	if err == nil && r.Code != machine.OK {
		err = fmt.Errorf("put %s: code %d: %s", key, r.Code, r.Body)
	}
	return err
}

func (n *node) get(ctx context.Context, key string) (string, error) {
	r, err := n.engine.Client().Query(ctx, &machine.Query{Kind: machine.QueryKey, Name: key})
	if err != nil {
		return "", err
	}
	var e machine.KeyEntry
	if r.Code == machine.OK {
		err = machine.Decode(r.Body, &e)
	}
	return string(e.Value), err
}
