package transport

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/transport/internal/seal"
)

// Packet is one gossip packet, opened.
type Packet struct {
	Data []byte         // belongs to the receiver
	From netip.AddrPort // where it came from, which need not be what the peer advertises
	At   time.Time      // when it was read
}

const (
	maxPackets = 1024 // not yet taken by membership
	maxGreeted = 16   // gossip streams not yet taken by membership
)

// gossip is the port of membership.
type gossip struct {
	sealer  *seal.Sealer
	bound   atomic.Pointer[[]byte] // what packets to us are bound to
	packets chan Packet
	conns   chan net.Conn
	buf     sync.Pool // of *[]byte, for sealed packets
}

func (g *gossip) start(s *seal.Sealer, name string) {
	g.sealer = s
	g.packets = make(chan Packet, maxPackets)
	g.conns = make(chan net.Conn, maxGreeted)
	g.buf.New = func() any { b := make([]byte, 0, MaxPacket+seal.Overhead); return &b }
	g.rename(name)
}

func (g *gossip) rename(name string) {
	bound := g.sealer.Bound(name)
	g.bound.Store(&bound)
}

func (g *gossip) open(b []byte) ([]byte, error) { return g.sealer.Open(nil, b, *g.bound.Load()) }

// end closes the channels, once nothing can send on them any more.
func (g *gossip) end() {
	close(g.packets)
	close(g.conns)
}

// SetGossipName sets our memberlist name, to which packets for us are bound. It is
// <Name>#<Boot> from the start.
func (t *Transport) SetGossipName(name string) { t.gossip.rename(name) }

// Packets are the gossip packets to this node, opened. 1024 are kept, further ones
// dropped. The channel is closed by Close.
func (t *Transport) Packets() <-chan Packet { return t.gossip.packets }

// GossipConns are the gossip streams that peers opened. The receiver must close each.
// 16 are kept, further ones refused. The channel is closed by Close.
func (t *Transport) GossipConns() <-chan net.Conn { return t.gossip.conns }

// WritePacket seals b, at most [MaxPacket] bytes, for the node whose memberlist name
// is name and sends it to to. Without a name nobody could open it, so it is dropped.
//
// The error is nil or a *net.OpError of a local write. Nothing else may be returned:
// memberlist v0.7.0 takes any other error for a reason not to suspect the peer, and
// then never finds it dead.
func (t *Transport) WritePacket(b []byte, to netip.AddrPort, name string) error {
	if name == "" {
		t.seen.nameless.Add(1)
		return nil
	}
	addr := net.UDPAddrFromAddrPort(to)
	if t.ctx.Err() != nil {
		return localWrite(net.ErrClosed, addr)
	}
	buf := t.gossip.buf.Get().(*[]byte)
	defer t.gossip.buf.Put(buf)
	*buf = t.gossip.sealer.Seal((*buf)[:0], b, name)
	_, err := t.cfg.Conn.WriteTo(*buf, addr)
	return localWrite(err, addr)
}

func localWrite(err error, to net.Addr) error {
	if err == nil {
		return nil
	}
	if op, ok := err.(*net.OpError); ok && op.Op == "write" && strings.HasPrefix(op.Net, "udp") {
		return op
	}
	return &net.OpError{Op: "write", Net: "udp", Addr: to, Err: err}
}

// DialGossip opens a raw stream to the node at to. name is its memberlist name, or ""
// for whichever member of the cluster is found there. It is [ErrSelf] if that is this
// node.
func (t *Transport) DialGossip(ctx context.Context, to netip.AddrPort, name string) (net.Conn, error) {
	where := target{addr: netip.AddrPortFrom(to.Addr().Unmap(), to.Port())}
	id, boot, named := strings.Cut(name, "#")
	where.name = id
	if named {
		where.boot, _ = strconv.ParseUint(boot, 10, 64)
	}
	s, err := t.openAt(ctx, where, classGossip)
	if err != nil {
		return nil, fmt.Errorf("dial gossip of %q at %v: %w", name, to, err)
	}
	return &gossipConn{Stream: s}, nil
}

// serveGossip hands a stream to membership and lasts until that has closed it: ctx
// would end too early, when the peer stops reading after its last byte.
func (t *Transport) serveGossip(_ context.Context, _ Peer, s *Stream) {
	c := &gossipConn{Stream: s, closed: make(chan struct{})}
	select {
	case t.gossip.conns <- c:
	default:
		s.reset(streamOverloaded)
		return
	}
	select {
	case <-c.closed:
	case <-s.link.conn.Context().Done():
	}
}

// gossipConn is a stream in the form memberlist wants.
type gossipConn struct {
	*Stream
	once   sync.Once
	closed chan struct{} // nil for a dialed one
}

// Read reads raw bytes.
func (c *gossipConn) Read(b []byte) (int, error) {
	n, err := c.qs.Read(b)
	return n, meaning(err)
}

// Write writes raw bytes.
func (c *gossipConn) Write(b []byte) (int, error) {
	n, err := c.qs.Write(b)
	return n, meaning(err)
}

// Close sends what was written and reads no more. That the peer has done so before
// is no error.
func (c *gossipConn) Close() error {
	_ = c.Stream.Close()
	c.qs.CancelRead(streamCanceled)
	c.over(sent | received)
	c.once.Do(func() {
		if c.closed != nil {
			close(c.closed)
		}
	})
	return nil
}

// LocalAddr is what this node advertises.
func (c *gossipConn) LocalAddr() net.Addr {
	return net.UDPAddrFromAddrPort(c.link.t.cfg.Advertise)
}

// RemoteAddr is where the packets of the peer come from.
func (c *gossipConn) RemoteAddr() net.Addr { return c.link.conn.RemoteAddr() }
