package memnet

import (
	"container/heap"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// depth bounds a receive queue: what a kernel holds with 7 MiB of buffer (the size
// that quic-go asks for) at some 900 bytes a datagram.
const depth = 8192

// conn is one socket. Datagrams wait in it, those under way too, in the order in
// which they fall due.
type conn struct {
	net    *Net
	at     netip.AddrPort
	closed chan struct{}
	once   sync.Once
	wake   chan struct{} // holds a token when queue or deadline changed

	mu       sync.Mutex // guards all below
	queue    queue
	seq      uint64
	deadline time.Time
}

func newConn(n *Net, at netip.AddrPort) *conn {
	return &conn{net: n, at: at, closed: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// push queues a copy of b; false means that the queue is full.
func (c *conn) push(due time.Time, from netip.AddrPort, b []byte) bool {
	c.mu.Lock()
	full := len(c.queue) >= depth
	if !full {
		c.seq++
		heap.Push(&c.queue, datagram{due: due, seq: c.seq, from: from, data: append([]byte(nil), b...)})
	}
	c.mu.Unlock()
	c.signal()
	return !full
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// ReadFrom returns the next datagram that is due, cut to len(b).
func (c *conn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		d, wait, err := c.next()
		if err != nil {
			return 0, nil, c.fault("read", err)
		}
		if d != nil {
			return copy(b, d.data), net.UDPAddrFromAddrPort(d.from), nil
		}
		c.sleep(wait)
	}
}

// next takes a datagram that is due now. Without one it says how long to wait for
// the first change that is known of; a negative wait means that none is.
func (c *conn) next() (*datagram, time.Duration, error) {
	select {
	case <-c.closed:
		return nil, 0, net.ErrClosed
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now, wait := time.Now(), time.Duration(-1)
	if !c.deadline.IsZero() {
		if wait = c.deadline.Sub(now); wait <= 0 {
			return nil, 0, os.ErrDeadlineExceeded
		}
	}
	if len(c.queue) == 0 {
		return nil, wait, nil
	}
	if until := c.queue[0].due.Sub(now); until > 0 {
		if wait < 0 || until < wait {
			wait = until
		}
		return nil, wait, nil
	}
	d := heap.Pop(&c.queue).(datagram)
	if len(c.queue) > 0 {
		c.signal() // one token may stand for many datagrams: pass it on to another reader
	}
	return &d, 0, nil
}

func (c *conn) sleep(wait time.Duration) {
	var due <-chan time.Time
	if wait >= 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-c.wake:
	case <-due:
	case <-c.closed:
	}
}

// WriteTo sends b to addr, a *net.UDPAddr. It never waits.
func (c *conn) WriteTo(b []byte, addr net.Addr) (int, error) {
	select {
	case <-c.closed:
		return 0, c.fault("write", net.ErrClosed)
	default:
	}
	to, ok := addr.(*net.UDPAddr)
	if !ok {
		return 0, c.fault("write", &net.AddrError{Err: "not a UDP address", Addr: addr.String()})
	}
	at := to.AddrPort()
	c.net.send(link{c.at, netip.AddrPortFrom(at.Addr().Unmap(), at.Port())}, b)
	return len(b), nil
}

// Close frees the address and ends every ReadFrom. Datagrams that wait are lost.
func (c *conn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.net.remove(c)
	})
	return nil
}

func (c *conn) LocalAddr() net.Addr { return net.UDPAddrFromAddrPort(c.at) }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	c.signal()
	return nil
}

// SetWriteDeadline does nothing: a write never waits.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetReadBuffer and SetWriteBuffer exist because quic-go warns about a socket whose
// buffers it cannot set.
func (c *conn) SetReadBuffer(int) error  { return nil }
func (c *conn) SetWriteBuffer(int) error { return nil }

func (c *conn) fault(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.LocalAddr(), Err: err}
}

type datagram struct {
	due  time.Time
	seq  uint64 // keeps the order of sending among those due at one moment
	from netip.AddrPort
	data []byte
}

// queue is a heap by due, then seq.
type queue []datagram

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if q[i].due.Equal(q[j].due) {
		return q[i].seq < q[j].seq
	}
	return q[i].due.Before(q[j].due)
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(datagram)) }
func (q *queue) Pop() any {
	old := *q
	last := len(old) - 1
	d := old[last]
	old[last] = datagram{} // let go of the data
	*q = old[:last]
	return d
}
