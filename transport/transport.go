package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/clatter-go/clatter/transport/internal/identity"
	"github.com/clatter-go/clatter/transport/internal/seal"
)

// Application protocol of TLS: another major version is another name.
const protocol = "clatter/1"

const (
	maxConnections    = 1024
	maxStreams        = 512 // of a peer on one connection
	dialTimeout       = 3 * time.Second
	handshakePatience = 2 * time.Second // without a packet, while shaking hands
	idleCtl           = 10 * time.Second
	idleBulk          = 30 * time.Second
	windowBudget      = 256 << 20 // receive windows of all connections beyond their first size
)

// Transport is the one socket of a node and all that runs on it.
type Transport struct {
	cfg      Config
	log      *slog.Logger
	id       *identity.Identity
	quic     *quic.Transport
	listener *quic.Listener
	door     door
	windows  budget
	gossip   gossip
	seen     counters
	calls    chan struct{} // a slot for each call in flight

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine of ours
	closed sync.Once

	book atomic.Pointer[AddressBook]

	// roles guards what the rooms register.
	roles    sync.RWMutex
	handlers map[Class]handler
	methods  map[string]method
	watchers []*watcher

	// mu guards who is connected, and the start of goroutines against Close.
	mu      sync.Mutex
	closing bool
	peers   map[string]*peer
	links   map[*link]struct{}
	fresh   map[*quic.Conn]struct{}     // before their Hello
	joins   map[netip.AddrPort]*attempt // dials of addresses whose node is not known
	open    map[Class]int               // streams of peers that run here
	news    map[string]struct{}         // peers whose watchers may have to be told
	newsy   chan struct{}
}

type (
	handler = func(ctx context.Context, from Peer, s *Stream)
	method  = func(ctx context.Context, from Peer, req []byte) ([]byte, error)
)

// counters of what is refused or dropped; the sweeper logs their growth.
type counters struct {
	strangers, misfits, forged, overflow, nameless, handshakes atomic.Uint64
}

// New takes over the socket of cfg and listens on it. Peers can connect from then
// on; streams of classes without a handler are refused until Handle is called.
// All that is wrong with cfg is in the error.
func New(cfg Config) (*Transport, error) {
	if err := cfg.check(); err != nil {
		if cfg.Conn != nil {
			_ = cfg.Conn.Close()
		}
		return nil, fmt.Errorf("transport: %w", err)
	}
	t, err := build(cfg)
	if err == nil {
		err = t.listen()
	}
	if err != nil {
		_ = cfg.Conn.Close()
		return nil, fmt.Errorf("transport of %q: %w", cfg.Name, err)
	}
	t.work.Go(t.accept)
	t.work.Go(t.sweep)
	t.work.Go(t.announce)
	return t, nil
}

// build makes a Transport that does not run yet.
func build(cfg Config) (*Transport, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	t := &Transport{
		cfg:      cfg,
		log:      cfg.Logger.With("node", cfg.Name),
		handlers: map[Class]handler{},
		methods:  map[string]method{},
		peers:    map[string]*peer{},
		links:    map[*link]struct{}{},
		fresh:    map[*quic.Conn]struct{}{},
		joins:    map[netip.AddrPort]*attempt{},
		open:     map[Class]int{},
		news:     map[string]struct{}{},
		newsy:    make(chan struct{}, 1),
		calls:    make(chan struct{}, maxCalls),
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.windows.used = map[*quic.Conn]uint64{}
	var err error
	if t.id, err = identity.New(cfg.Cluster, identity.Node{Name: cfg.Name, Boot: cfg.Boot}, cfg.Secrets); err != nil {
		return nil, err
	}
	sealer, err := seal.New(cfg.Cluster, cfg.Secrets)
	if err != nil {
		return nil, err
	}
	t.gossip.start(sealer, fmt.Sprintf("%s#%d", cfg.Name, cfg.Boot))
	t.handlers[classRPC] = t.serveCalls
	t.handlers[classGossip] = t.serveGossip
	return t, nil
}

func (t *Transport) listen() error {
	reset, err := identity.Derive(t.cfg.Secrets[0], t.cfg.Cluster, "stateless reset "+t.cfg.Name, 32)
	if err != nil {
		return err
	}
	t.quic = &quic.Transport{
		Conn:                t.demux(),
		ConnectionIDLength:  8,
		StatelessResetKey:   (*quic.StatelessResetKey)(reset),
		VerifySourceAddress: t.door.busy,
		ConnContext: func(ctx context.Context, who *quic.ClientInfo) (context.Context, error) {
			if err := t.door.admit(who); err != nil {
				t.seen.handshakes.Add(1)
				return nil, err
			}
			return ctx, nil
		},
	}
	t.listener, err = t.quic.Listen(t.id.Server(protocol, t.stranger), t.quicConfig(bulk))
	return err
}

func (t *Transport) stranger(error) { t.seen.strangers.Add(1) }

// quicConfig is that of a connection for p. An accepted one does not know p yet and
// takes the longer idle time and the larger windows; the dialer's smaller idle time
// holds for both ends.
func (t *Transport) quicConfig(p purpose) *quic.Config {
	c := &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		HandshakeIdleTimeout:           handshakePatience,
		MaxIdleTimeout:                 idleCtl,
		InitialStreamReceiveWindow:     256 << 10,
		MaxStreamReceiveWindow:         4 << 20,
		InitialConnectionReceiveWindow: 512 << 10,
		MaxConnectionReceiveWindow:     8 << 20,
		AllowConnectionWindowIncrease:  t.windows.allow,
		MaxIncomingStreams:             maxStreams,
		MaxIncomingUniStreams:          -1,
		RequireStreamCreditRelease:     true,
		InitialPacketSize:              1200, // the default 1280 cannot shake hands over a path of 1280 (quic-go 5815)
	}
	if p == bulk {
		c.MaxIdleTimeout = idleBulk
		c.MaxStreamReceiveWindow = 8 << 20
		c.MaxConnectionReceiveWindow = 16 << 20
	}
	return c
}

// Use sets who is where. Until then only peers that are connected can be reached.
func (t *Transport) Use(book AddressBook) { t.book.Store(&book) }

// Self is this node as its peers see it.
func (t *Transport) Self() Peer {
	return Peer{Name: t.cfg.Name, Boot: t.cfg.Boot, Addr: t.cfg.Advertise}
}

// Handle sets the handler of a class of framed streams. ctx ends when the stream is
// reset or closed for writing, with the connection and with the Transport. What the
// handler leaves open is closed after it.
//
// The classes of calls and gossip have handlers of their own, which stay. A stream of
// a class without a handler is refused with [ErrUnknownClass] at its opener.
func (t *Transport) Handle(c Class, h func(ctx context.Context, from Peer, s *Stream)) {
	if !c.framed() {
		return
	}
	t.roles.Lock()
	defer t.roles.Unlock()
	t.handlers[c] = h
}

// Answer sets the handler of a method, whose name has at most 64 bytes; until then
// calls of it are refused with [NotFound]. req is valid until h returns. ctx ends when
// the caller's time is over, when the caller gives up, and with the Transport.
func (t *Transport) Answer(method string, h func(ctx context.Context, from Peer, req []byte) ([]byte, error)) {
	t.roles.Lock()
	defer t.roles.Unlock()
	t.methods[method] = h
}

// Watch adds a watcher of connections. It is told of the peers that are up now and
// then of every change, in order, on a goroutine that all watchers share: it must
// not block.
func (t *Transport) Watch(fn func(PeerEvent)) {
	t.roles.Lock()
	t.watchers = append(t.watchers, &watcher{fn, map[string]Peer{}})
	t.roles.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.peers {
		t.tell(name)
	}
}

// Close tells the peers, ends every stream and call, waits for all handlers and
// goroutines and closes the socket. It may be called more than once.
func (t *Transport) Close() error {
	var err error
	t.closed.Do(func() { err = t.close() })
	t.work.Wait()
	return err
}

func (t *Transport) close() error {
	t.cancel()
	t.mu.Lock()
	t.closing = true
	var conns []*quic.Conn
	for c := range t.fresh {
		conns = append(conns, c)
	}
	for l := range t.links {
		conns = append(conns, l.conn)
	}
	t.mu.Unlock()
	var ends sync.WaitGroup
	for _, c := range conns {
		ends.Go(func() { _ = c.CloseWithError(connShutdown, "") })
	}
	ends.Wait()
	err := errors.Join(t.listener.Close(), t.quic.Close(), t.cfg.Conn.Close())
	t.work.Wait()
	t.gossip.end()
	return err
}

// spawn runs f on a goroutine that Close waits for. It is false, and f does not run,
// once Close has begun. The caller holds t.mu.
func (t *Transport) spawn(f func()) bool {
	if t.closing {
		return false
	}
	t.work.Go(f)
	return true
}

// accept takes connections as they come: quic-go keeps only 32 waiting and refuses
// the rest.
func (t *Transport) accept() {
	for {
		conn, err := t.listener.Accept(t.ctx)
		if err != nil {
			return
		}
		t.mu.Lock()
		room := len(t.fresh)+len(t.links) < maxConnections
		started := room && t.spawn(func() { t.welcome(conn) })
		if started {
			t.fresh[conn] = struct{}{}
		}
		t.mu.Unlock()
		if !started {
			_ = conn.CloseWithError(connLimit, "")
		}
	}
}

func (t *Transport) clientTLS(want string) *tls.Config { return t.id.Client(protocol, want) }

// addrPort is a as membership and the address book write it: IPv4 never mapped.
func addrPort(a net.Addr) netip.AddrPort {
	if u, ok := a.(*net.UDPAddr); ok {
		p := u.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	p, _ := netip.ParseAddrPort(a.String())
	return p
}
