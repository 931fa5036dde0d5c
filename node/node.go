package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/counter"
	"github.com/clatter-go/clatter/consensus/election"
	"github.com/clatter-go/clatter/consensus/kv"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/consensus/session"
	"github.com/clatter-go/clatter/internal/seam"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/membership"
	"github.com/clatter-go/clatter/transport"
	"github.com/clatter-go/clatter/workqueue"
)

// Node is one member of a cluster.
type Node struct {
	name     string
	dirLock  io.Closer
	wire     *transport.Transport
	members  *membership.List
	engine   *consensus.Engine
	sessions *session.Keeper
	queues   *workqueue.Engine

	closing sync.Once
	closed  chan struct{}
	err     error // of closing; read after closed
}

// Start starts a node. It returns when the socket, the storage and gossip run and
// the first round of discovery was made; whether the cluster can be used is what
// [Node.Ready] waits for. ctx bounds the start only.
//
// Every fault of the configuration is in the error, each a [*ConfigError]. Other
// errors: [ErrDirInUse], [ErrNameTaken], an address that cannot be listened on, and
// a damaged log or snapshot, with its file and offset: it is never served from.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	secret, err := cfg.secret()
	if err != nil {
		return nil, err
	}
	env := seam.From(ctx)
	if env.FS == nil {
		env.FS = vfs.OS()
	}
	if env.Listen == nil {
		env.Listen = func(addr string) (net.PacketConn, error) { return net.ListenPacket("udp", addr) }
	}
	id, err := claim(env.FS, cfg.Dir, cfg.Name)
	if err != nil {
		return nil, err
	}
	n := &Node{name: id.Name, dirLock: id.lock, closed: make(chan struct{})}
	if id.fresh {
		err = cfg.checkFounding()
	}
	if err != nil {
		n.stop()
		return nil, err
	}
	if err := n.start(ctx, cfg, env, id, secret); err != nil {
		n.stop()
		return nil, fmt.Errorf("start node %s: %w", id.Name, err)
	}
	return n, nil
}

// start builds the rooms from the ground up. What is built when it returns an error, stop takes down.
func (n *Node) start(ctx context.Context, cfg Config, env seam.Env, id identity, secret []byte) (err error) {
	conn, err := env.Listen(cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", cfg.Listen, err)
	}
	advertise, err := advertised(ctx, cfg.Advertise, conn)
	if err != nil {
		conn.Close()
		return err
	}
	n.wire, err = transport.New(transport.Config{
		Conn: conn, Advertise: advertise, Name: id.Name, Boot: id.Boot, Cluster: cfg.Cluster,
		Secrets: [][]byte{secret}, Logger: cfg.Logger,
	})
	if err != nil {
		conn.Close()
		return err
	}
	n.members, err = membership.Start(ctx, membership.Config{
		Transport: n.wire, Join: cfg.Join, Discover: cfg.Discover, Pace: cfg.Pace.gossip(),
		Zone: cfg.Zone, Labels: cfg.Labels, Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	n.wire.Use(n.members)
	dir := ""
	if cfg.Dir != "" {
		dir = filepath.Join(cfg.Dir, consensusDir)
	}
	n.engine, err = consensus.Start(ctx, consensus.Config{
		Name: id.Name, Boot: id.Boot, Cluster: cfg.Cluster, FS: env.FS, Dir: dir,
		Transport: n.wire, Roster: roster{n.members}, Expect: cfg.Expect, Voters: cfg.Voters,
		FoundAlone: cfg.FoundAlone, NonVoter: cfg.NonVoter, Zone: cfg.Zone, Pace: cfg.Pace.consensus(), Logger: cfg.Logger,
	})
	if err != nil {
		return err
	}
	n.sessions = session.NewKeeper(n.engine.Client(), id.Name, id.Boot, id.Origin, cfg.SessionTTL, cfg.Pace.leastTTL(), cfg.Logger)
	if id.again {
		n.sessions.Go(func(ctx context.Context) {
			// Opening the new session ends that of the process before, and frees what it held.
			if _, err := n.sessions.Default(ctx); err != nil && ctx.Err() == nil {
				cfg.Logger.Warn("the session of this node's last start was not ended, it will expire", "node", id.Name, "err", err)
			}
		})
	}
	n.queues = workqueue.NewEngine(workqueue.EngineConfig{
		Ledger: ledger{n.sessions}, Peers: peers{n.wire, n.members}, Logger: cfg.Logger,
	})
	return nil
}

// advertised is the address that peers dial.
func advertised(ctx context.Context, set string, conn net.PacketConn) (netip.AddrPort, error) {
	if set == "" {
		addr, err := netip.ParseAddrPort(conn.LocalAddr().String())
		if err != nil {
			return addr, fmt.Errorf("advertise the address of the socket: %w: set Advertise", err)
		}
		return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), nil
	}
	host, port, err := splitAddr(set)
	if err != nil {
		return netip.AddrPort{}, &ConfigError{Field: "Advertise", Reason: err.Error()}
	}
	if port == 0 {
		if addr, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
			port = addr.Port()
		}
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(ips) == 0 {
		return netip.AddrPort{}, &ConfigError{Field: "Advertise", Reason: fmt.Sprintf("%q has no address: %v", host, err)}
	}
	return netip.AddrPortFrom(ips[0].Unmap(), port), nil
}

// Ready returns when a quorum is known and this node can use it. Until then calls
// wait; nobody has to call Ready. The error Is the cause of ctx and says what is
// missing; a node whose storage is damaged returns that.
func (n *Node) Ready(ctx context.Context) error {
	if err := n.engine.Ready(ctx); err != nil {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	return nil
}

// Leave takes leave: it hands tasks back, gives up leaderships and locks, hands
// over raft leadership, tells the others, and closes the node. Functions that run
// under Do or Run are told to stop and waited for: what they hold is freed only after
// they have returned, so one of them may call Leave only with a ctx that ends. A voter
// with a directory keeps its seat and is expected back. When ctx ends first it behaves
// as Close, and says so: what was not handed over is left to expire. After Close it is
// nil. Nothing new can be locked or written meanwhile ([consensus.ErrClosed]).
func (n *Node) Leave(ctx context.Context) error {
	select {
	case <-n.closed:
		return nil
	default:
	}
	var err error
	for _, step := range []func(context.Context) error{
		n.queues.Drain, n.sessions.Leave, n.engine.Resign, n.members.Leave,
	} {
		if err = step(ctx); err != nil {
			break // what is still in use is left to expire: freeing it now would let two use it
		}
	}
	if errors.Is(err, consensus.ErrClosed) { // Close came in between
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("leave node %s: %w", n.name, err)
	}
	return errors.Join(err, n.Close())
}

// Close stops the node without a word: to the others it has failed. When it returns,
// every hold, leadership, session and wait of the node has ended, and its sockets,
// files and goroutines are gone, handlers that ignore their ctx excepted. It may be
// called again.
func (n *Node) Close() error {
	n.closing.Do(func() {
		n.err = n.stop()
		close(n.closed)
	})
	<-n.closed
	return n.err
}

// stop takes down what start has built, from the roof: belief ends first.
func (n *Node) stop() error {
	var errs []error
	if n.sessions != nil {
		n.sessions.Close()
	}
	if n.queues != nil {
		errs = append(errs, n.queues.Close())
	}
	if n.engine != nil {
		errs = append(errs, n.engine.Close())
	}
	if n.members != nil {
		errs = append(errs, n.members.Close())
	}
	if n.wire != nil {
		errs = append(errs, n.wire.Close())
	}
	if err := errors.Join(append(errs, n.dirLock.Close())...); err != nil {
		return fmt.Errorf("close node %s: %w", n.name, err)
	}
	return nil
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// Addr returns the host:port that peers dial.
func (n *Node) Addr() string { return n.wire.Self().Addr.String() }

// Members yields the members that this node knows of, itself included, by name:
// alive and leaving ones, and failed ones until they are forgotten. It is gossip:
// other nodes may see it otherwise for a while.
func (n *Node) Members() iter.Seq[membership.Member] { return n.members.Members() }

// Events yields the members as Joined events, one Synced, and then every change in
// order. The last pair carries the reason why it ended.
func (n *Node) Events(ctx context.Context) iter.Seq2[membership.Event, error] {
	return n.members.Events(ctx)
}

// Status is this node's own view of the consensus; no question is asked on the network.
type Status struct {
	Leader    string            // name of the raft leader; "" when none is known
	Term      uint64            // 0 when none is known
	Founder   string            // name of the node that proposed the cluster; "" before the founding
	Voters    []string          // names
	Tolerates int               // how many voters may fail
	Applied   uint64            // index of the last entry applied here; 0 on a node without a replica
	Hash      uint64            // of the state at Applied: equal on all replicas
	Lag       map[string]uint64 // on the leader: entries that each other voter has yet to get
}

// Status returns this node's own view. The error is [consensus.ErrClosed] after Close.
func (n *Node) Status(ctx context.Context) (Status, error) {
	if err := ctx.Err(); err != nil {
		return Status{}, context.Cause(ctx)
	}
	select {
	case <-n.closed:
		return Status{}, fmt.Errorf("status of node %s: %w", n.name, consensus.ErrClosed)
	default:
	}
	s := n.engine.Status()
	return Status{
		Leader: s.Leader, Term: s.Term, Founder: s.Founder, Voters: s.Voters, Tolerates: s.Tolerates,
		Applied: s.Applied, Hash: s.Hash, Lag: s.Lag,
	}, nil
}

// Mutex returns the lock of that name.
func (n *Node) Mutex(name string) *lock.Mutex { return lock.New(n.sessions, name) }

// Election returns the election of that name.
func (n *Node) Election(name string) *election.Election { return election.New(n.sessions, name) }

// KV returns the store below prefix.
func (n *Node) KV(prefix string) *kv.KV { return kv.New(n.sessions, prefix) }

// Counter returns the counter of that name.
func (n *Node) Counter(name string) *counter.Counter { return counter.New(n.sessions, name) }

// Session opens a session of its own; it ends with the node. ttl is at least 3 s at
// LAN pace, 1 s at Fast and 15 s at WAN, else the error is [consensus.ErrInvalid].
func (n *Node) Session(ctx context.Context, ttl time.Duration) (*session.Session, error) {
	return n.sessions.Open(ctx, ttl)
}

// Consensus is for packages that build primitives on a node.
func (n *Node) Consensus() *consensus.Client { return n.engine.Client() }

// Queues is for package workqueue.
func (n *Node) Queues() *workqueue.Engine { return n.queues }
