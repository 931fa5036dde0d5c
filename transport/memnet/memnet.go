// Package memnet is an in-memory datagram network whose links can be made slow,
// lossy or dead, for tests of everything that speaks over a net.PacketConn.
//
// A Net owns the addresses; Listen gives a socket on one of them. Every directed
// link has a Rule, so that a network can be asymmetric; cuts made by Partition,
// Isolate and OneWay lie beside the rules and are lifted by Heal. Without a rule a
// datagram arrives at once, unharmed and in order.
//
// # Invariants
//
// Datagrams of one link that fall due at the same moment arrive in the order in
// which they were sent: only Jitter reorders. All chance comes from the seed and is
// drawn in the order of the sends: as far as that order is fixed, so is the outcome.
//
// # Concurrency
//
// All methods of Net and of its sockets may be called from any goroutine. No
// goroutine and no timer runs inside: a datagram waits at its receiver until a
// reader finds it due. A Net therefore works inside testing/synctest bubbles, also
// below quic-go, and leaves nothing behind once its sockets are closed.
//
// # Failure
//
// As with UDP, WriteTo does not report what happens to a datagram on the way. A
// full receive queue (see Listen), a cut, a missing receiver and a datagram beyond
// the MTU all lose it silently; Stats counts them.
package memnet

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Rule says what happens to the datagrams of one direction of a link. The zero
// Rule is a perfect link.
type Rule struct {
	Drop    float64       // probability that a datagram is lost, 0 to 1
	Dup     float64       // probability that one arrives twice, 0 to 1
	Delay   time.Duration // one-way latency
	Jitter  time.Duration // uniform extra latency in [0, Jitter); reorders
	Blocked bool          // nothing passes
	MTU     int           // larger datagrams vanish, as in a path-MTU black hole; 0 = no limit
}

// Stats counts what happened on a Net since New. What was sent and neither lost nor
// overflowed was delivered or is under way.
type Stats struct {
	Sent       uint64 // datagrams that sockets wrote
	Bytes      uint64 // their sizes, without headers
	Lost       uint64 // datagrams dropped by a rule or a cut, or sent to where nobody listens
	Overflowed uint64 // copies that met a full receive queue
}

// Net is one network. Its zero value is not usable; see New.
type Net struct {
	mu     sync.Mutex // guards all below
	rng    *rand.Rand
	socks  map[netip.AddrPort]*conn
	always Rule
	rules  map[link]Rule
	groups map[netip.AddrPort]int
	apart  map[netip.AddrPort]bool
	cut    map[link]bool
	port   uint16
	stats  Stats
}

// link is one direction between two sockets.
type link struct{ from, to netip.AddrPort }

// firstPort is where automatic ports begin: the dynamic range of RFC 6335, section 6.
const firstPort = 49152

// New returns a network of perfect links whose later misfortunes follow from seed.
func New(seed uint64) *Net {
	n := &Net{
		rng:   rand.New(rand.NewPCG(seed, seed)),
		socks: map[netip.AddrPort]*conn{},
		rules: map[link]Rule{},
		port:  firstPort,
	}
	n.heal()
	return n
}

// ErrInUse is returned, wrapped in a *net.OpError, by Listen on an address that has
// an open socket.
var ErrInUse = errors.New("address already in use")

// Listen opens a socket on addr, an IP address and a port; port 0 takes a free one.
// Its addresses are *net.UDPAddr. It holds at most 8192 datagrams, under way ones
// included; what comes beyond them is lost.
func (n *Net) Listen(addr string) (net.PacketConn, error) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Err: fmt.Errorf("memnet: %w", err)}
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	n.mu.Lock()
	defer n.mu.Unlock()
	for at.Port() == 0 {
		if free := netip.AddrPortFrom(at.Addr(), n.port); n.socks[free] == nil {
			at = free
		}
		n.port = max(n.port+1, firstPort)
	}
	if n.socks[at] != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Addr: net.UDPAddrFromAddrPort(at), Err: ErrInUse}
	}
	c := newConn(n, at)
	n.socks[at] = c
	return c, nil
}

// SetAll gives every link without a rule of its own the rule r.
func (n *Net) SetAll(r Rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.always = r
}

// Set gives the one direction from -> to the rule r, instead of that of SetAll.
// Addresses are "ip:port"; one that does not parse panics, as only a test can name it.
func (n *Net) Set(from, to string, r Rule) {
	l := link{addrOf(from), addrOf(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules[l] = r
}

// Partition lets nothing pass between sockets of different groups, in either
// direction. A socket in no group hears all and is heard by all. It replaces an
// earlier Partition; other cuts stay.
func (n *Net) Partition(groups ...[]string) {
	of := map[netip.AddrPort]int{}
	for i, g := range groups {
		for _, a := range g {
			of[addrOf(a)] = i
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.groups = of
}

// Isolate cuts a socket off from all others, in both directions.
func (n *Net) Isolate(addr string) {
	a := addrOf(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.apart[a] = true
}

// Rejoin lifts an Isolate of addr, and only that.
func (n *Net) Rejoin(addr string) {
	a := addrOf(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.apart, a)
}

// OneWay cuts the direction from -> to only: to is still heard by from.
func (n *Net) OneWay(from, to string) {
	l := link{addrOf(from), addrOf(to)}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[l] = true
}

// Heal lifts every Partition, Isolate and OneWay. Rules stay as they are.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heal()
}

func (n *Net) heal() {
	n.groups = map[netip.AddrPort]int{}
	n.apart = map[netip.AddrPort]bool{}
	n.cut = map[link]bool{}
}

// Stats returns the counts so far.
func (n *Net) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// send takes b over its link: it decides the fate of every copy and hands the ones
// that arrive to the receiver.
func (n *Net) send(l link, b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.Sent++
	n.stats.Bytes += uint64(len(b))
	dst, r := n.socks[l.to], n.rule(l)
	if dst == nil || r.Blocked || n.severed(l) || (r.MTU > 0 && len(b) > r.MTU) || n.chance(r.Drop) {
		n.stats.Lost++
		return
	}
	copies := 1
	if n.chance(r.Dup) {
		copies = 2
	}
	for range copies {
		due := time.Now().Add(r.Delay)
		if r.Jitter > 0 {
			due = due.Add(time.Duration(n.rng.Int64N(int64(r.Jitter))))
		}
		if !dst.push(due, l.from, b) {
			n.stats.Overflowed++
		}
	}
}

func (n *Net) rule(l link) Rule {
	if r, own := n.rules[l]; own {
		return r
	}
	return n.always
}

func (n *Net) severed(l link) bool {
	if n.apart[l.from] || n.apart[l.to] || n.cut[l] {
		return true
	}
	a, some := n.groups[l.from]
	b, other := n.groups[l.to]
	return some && other && a != b
}

// chance draws only where the outcome is open, so that a rule added for one link
// does not shift the draws of a run in which it is never used.
func (n *Net) chance(p float64) bool { return p > 0 && n.rng.Float64() < p }

func (n *Net) remove(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.socks[c.at] == c {
		delete(n.socks, c.at)
	}
}

func addrOf(s string) netip.AddrPort {
	a := netip.MustParseAddrPort(s)
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
