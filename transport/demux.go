package transport

import (
	"net"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/clatter-go/clatter/transport/internal/seal"
)

// demux puts a filter between the socket and quic-go which takes away what is not
// QUIC. quic-go's own way for that (ReadNonQUICPacket) keeps 32 packets, and loses
// 67 of a burst of 100.
func (t *Transport) demux() net.PacketConn {
	if u, ok := t.cfg.Conn.(*net.UDPConn); ok {
		return &udpFilter{UDPConn: u, batch: ipv4.NewPacketConn(u), t: t}
	}
	return &plainFilter{PacketConn: t.cfg.Conn, t: t}
}

// udpFilter stays a *net.UDPConn for quic-go, so that it reads in batches, offloads
// segmentation and marks congestion as on a bare socket.
type udpFilter struct {
	*net.UDPConn
	batch *ipv4.PacketConn
	t     *Transport
}

// ReadBatch is preferred by quic-go where the system has recvmmsg.
func (f *udpFilter) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	for {
		n, err := f.batch.ReadBatch(ms, flags)
		if err != nil || n == 0 {
			return n, err
		}
		if kept := f.keep(ms[:n]); kept > 0 {
			return kept, nil
		}
	}
}

// keep moves the QUIC packets of a batch to its front. They are copied, because
// quic-go pairs each message with the buffer it came with.
func (f *udpFilter) keep(ms []ipv4.Message) int {
	kept := 0
	for i := range ms {
		m := &ms[i]
		if f.t.take(m.Buffers[0][:m.N], m.Addr) {
			continue
		}
		if i != kept {
			k := &ms[kept]
			copy(k.Buffers[0], m.Buffers[0][:m.N])
			copy(k.OOB, m.OOB[:m.NN])
			k.N, k.NN, k.Addr, k.Flags = m.N, m.NN, m.Addr, m.Flags
		}
		kept++
	}
	return kept
}

// ReadFrom is what quic-go uses elsewhere.
func (f *udpFilter) ReadFrom(b []byte) (int, net.Addr, error) {
	return f.t.readQUIC(f.UDPConn, b)
}

// plainFilter is for a connection that is not a *net.UDPConn.
type plainFilter struct {
	net.PacketConn
	t *Transport
}

func (f *plainFilter) ReadFrom(b []byte) (int, net.Addr, error) {
	return f.t.readQUIC(f.PacketConn, b)
}

// quic-go prints a warning if it cannot size the buffers of the system, which such a
// connection does not have.
func (f *plainFilter) SetReadBuffer(int) error  { return nil }
func (f *plainFilter) SetWriteBuffer(int) error { return nil }

func (t *Transport) readQUIC(c net.PacketConn, b []byte) (int, net.Addr, error) {
	for {
		n, from, err := c.ReadFrom(b)
		if err != nil || !t.take(b[:n], from) {
			return n, from, err
		}
	}
}

// take consumes a packet that is not QUIC. It runs on quic-go's only reader, so it
// never waits: opening a seal takes a microsecond, a full queue drops.
func (t *Transport) take(b []byte, from net.Addr) bool {
	switch {
	case len(b) == 0:
		return true
	case b[0] >= 0x40:
		return false
	case b[0] != seal.First:
		t.seen.misfits.Add(1)
		return true
	}
	opened, err := t.gossip.open(b)
	if err != nil {
		t.seen.forged.Add(1)
		return true
	}
	select {
	case t.gossip.packets <- Packet{Data: opened, From: addrPort(from), At: time.Now()}:
	default:
		t.seen.overflow.Add(1)
	}
	return true
}
