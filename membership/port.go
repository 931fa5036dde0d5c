package membership

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/clatter-go/clatter/transport"
)

// wire is what of a transport.Transport carries gossip.
type wire interface {
	Self() transport.Peer
	SetGossipName(name string)
	WritePacket(b []byte, to netip.AddrPort, name string) error
	Packets() <-chan transport.Packet
	DialGossip(ctx context.Context, to netip.AddrPort, name string) (net.Conn, error)
	GossipConns() <-chan net.Conn
}

// port lets memberlist speak over the gossip port of a transport. Its Shutdown ends
// what it started and leaves the shared socket open.
type port struct {
	wire    wire
	ctx     context.Context
	cancel  context.CancelFunc
	packets chan *memberlist.Packet
	streams chan net.Conn
	patient atomic.Int64 // how long a join by address may dial, in ns; 0 = as long as memberlist says
	wg      sync.WaitGroup

	mu    sync.Mutex // guards conns and ended
	conns map[*gossipConn]struct{}
	ended bool
}

var _ memberlist.NodeAwareTransport = (*port)(nil)

func newPort(w wire) *port {
	p := &port{
		wire:    w,
		packets: make(chan *memberlist.Packet, 256),
		streams: make(chan net.Conn),
		conns:   map[*gossipConn]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.receive)
	p.wg.Go(p.accept)
	return p
}

// receive hands packets on. memberlist must never hold up the reader of the socket:
// what it does not take in time is lost, as on any network.
func (p *port) receive() {
	for {
		select {
		case in, open := <-p.wire.Packets():
			if !open {
				return
			}
			out := &memberlist.Packet{Buf: in.Data, From: net.UDPAddrFromAddrPort(in.From), Timestamp: in.At}
			select {
			case p.packets <- out:
			default:
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *port) accept() {
	for {
		select {
		case c, open := <-p.wire.GossipConns():
			if !open {
				return
			}
			select {
			case p.streams <- p.track(c):
			case <-p.ctx.Done():
				c.Close()
				return
			}
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *port) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	a := p.wire.Self().Addr
	return a.Addr().AsSlice(), int(a.Port()), nil
}

func (p *port) PacketCh() <-chan *memberlist.Packet { return p.packets }
func (p *port) StreamCh() <-chan net.Conn           { return p.streams }

// WriteToAddress sends one packet. It reports only that the own host refused it, as
// *net.OpError of a udp write: memberlist tests the error by type, and any other one
// makes it drop the probe without suspecting the peer. A peer whose death shows up
// as such an error would be held alive for ever.
func (p *port) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	addr, err := netip.ParseAddrPort(to.Addr)
	if err != nil || to.Name == "" {
		return time.Now(), nil // a packet is sealed for a name; memberlist names all it writes to
	}
	err = p.wire.WritePacket(b, addr, to.Name)
	if refused, ok := err.(*net.OpError); ok && refused.Net == "udp" && refused.Op == "write" {
		return time.Now(), refused
	}
	return time.Now(), nil
}

func (p *port) WriteTo(b []byte, addr string) (time.Time, error) {
	return p.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// DialAddressTimeout opens a stream to a node. Without a name, which is a join, the
// patience of the join bounds it too.
func (p *port) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	addr, err := netip.ParseAddrPort(to.Addr)
	if err != nil {
		return nil, err
	}
	if limit := time.Duration(p.patient.Load()); to.Name == "" && limit > 0 {
		timeout = min(timeout, limit)
	}
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	c, err := p.wire.DialGossip(ctx, addr, to.Name)
	if err != nil {
		return nil, err
	}
	return p.track(c), nil
}

func (p *port) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return p.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// Shutdown is called by memberlist. It ends dials and open streams too, so that no
// exchange of a closed list lives on until its timeout.
func (p *port) Shutdown() error {
	p.mu.Lock()
	p.ended = true
	open := p.conns
	p.conns = nil
	p.mu.Unlock()
	p.cancel()
	var errs []error
	for c := range open {
		errs = append(errs, c.Conn.Close())
	}
	p.wg.Wait()
	return errors.Join(errs...)
}

// track remembers c until it is closed.
func (p *port) track(c net.Conn) net.Conn {
	g := &gossipConn{Conn: c, port: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		c.Close()
		return g
	}
	p.conns[g] = struct{}{}
	return g
}

// gossipConn is a stream that Shutdown can end.
type gossipConn struct {
	net.Conn
	port *port
}

func (c *gossipConn) Close() error {
	c.port.mu.Lock()
	delete(c.port.conns, c)
	c.port.mu.Unlock()
	return c.Conn.Close()
}
