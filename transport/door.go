package transport

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	handshakesPerSecond = 200
	handshakesPerAddr   = 50
)

var errDoor = errors.New("too many handshakes")

// door limits how many handshakes begin in a second, so that strangers cost at most
// a small share of a core. Above half of the limit a client must first prove that it
// owns its address (Retry, RFC 9000 section 8.1.2).
type door struct {
	// mu guards the count of the current second.
	mu     sync.Mutex
	second time.Time
	all    int
	addrs  map[netip.Addr]int // at most handshakesPerSecond entries
}

// turn begins a new count when the second is over. The caller holds d.mu.
func (d *door) turn() {
	if now := time.Now(); now.Sub(d.second) >= time.Second {
		d.second, d.all = now, 0
		d.addrs = map[netip.Addr]int{}
	}
}

// busy tells whether the address of a client must be verified first.
func (d *door) busy(net.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn()
	return d.all > handshakesPerSecond/2
}

// admit counts a handshake that wants to begin. Loopback has no limit of its own:
// there, many nodes share one address.
func (d *door) admit(who *quic.ClientInfo) error {
	addr := addrPort(who.RemoteAddr).Addr()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.turn()
	if d.all >= handshakesPerSecond || (d.addrs[addr] >= handshakesPerAddr && !addr.IsLoopback()) {
		return errDoor
	}
	d.all++
	d.addrs[addr]++
	return nil
}

// budget bounds the memory that peers can fill with data that no handler reads: all
// connections share it for growing their receive windows.
type budget struct {
	// mu guards what each connection has taken.
	mu   sync.Mutex
	sum  uint64
	used map[*quic.Conn]uint64
}

func (b *budget) allow(c *quic.Conn, delta uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sum+delta > windowBudget {
		return false
	}
	b.sum += delta
	b.used[c] += delta
	return true
}

// release gives back what an ended connection had taken.
func (b *budget) release(c *quic.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum -= b.used[c]
	delete(b.used, c)
}
