package membership

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/clatter-go/clatter/transport"
)

// Config is what Start needs. Only Transport must be set.
type Config struct {
	Transport *transport.Transport // carries the gossip, names this node; not closed by the List
	Join      []string             // seeds: "host:port", "dns://name:port", "srv://_service._udp.name", "file:///path" with one host:port a line; default none
	Discover  Discoverer           // own discovery beside Join; default none
	Pace      Pace                 // timing; default LAN
	Zone      string               // failure domain, told to all; default ""
	Labels    map[string]string    // told to all; with Zone and a length byte each at most 220 bytes; default none
	Logger    *slog.Logger         // default slog.Default()
	Seed      uint64               // of the order in which seeds are tried, and of jitter; default random
}

// Pace trades the speed of noticing a failure for tolerance of slow hosts and networks.
type Pace uint8

// Paces. The times are from a crash until all of 5 nodes have seen it.
const (
	LAN  Pace = iota // 5 to 7 s; bears hosts that stall for a second
	Fast             // 2 to 3 s; hosts with CPU to spare
	WAN              // 30 to 60 s; round trips of a second
)

// tuning is what a Pace sets.
type tuning struct {
	base                 func() *memberlist.Config
	probe, probeTimeout  time.Duration
	suspicion            int
	gossip               time.Duration // larger delays news, smaller sends the same news in smaller packets
	firstRetry, patience time.Duration // of joins, both growing: short at first, because a seed that is not up yet cannot say so
	missed               time.Duration // by then a dead node is surely known as such
}

var tunings = map[Pace]tuning{
	LAN: {memberlist.DefaultLANConfig, time.Second, 500 * time.Millisecond, 4,
		50 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, time.Minute},
	Fast: {memberlist.DefaultLANConfig, 500 * time.Millisecond, 250 * time.Millisecond, 3,
		50 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 30 * time.Second},
	WAN: {memberlist.DefaultWANConfig, 5 * time.Second, 3 * time.Second, 6,
		200 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Minute},
}

// exchangeTimeout bounds every stream of gossip: a dial, a state exchange, a ping.
const exchangeTimeout = 3 * time.Second

// retransmit times log10(n+1), rounded up, is how often a node passes a message on, each
// time to somebody at random. With memberlist's 4 one message in 300 misses a node of
// six, until the next exchange of states; with 8 one in 100 000.
const retransmit = 8

// check finds all that is wrong at once and returns the sources that Join and
// Discover name.
func (c *Config) check() ([]*source, error) {
	var errs []error
	if c.Transport == nil {
		errs = append(errs, errors.New("Transport is missing"))
	}
	if _, known := tunings[c.Pace]; !known {
		errs = append(errs, fmt.Errorf("Pace %d: want LAN, Fast or WAN", c.Pace))
	}
	if err := (meta{zone: c.Zone, labels: c.Labels}).checkSize(); err != nil {
		errs = append(errs, fmt.Errorf("Zone, Labels: %w", err))
	}
	var sources []*source
	for _, join := range c.Join {
		d, err := sourceOf(join)
		if err != nil {
			errs = append(errs, fmt.Errorf("Join %q: %w", join, err))
		}
		sources = append(sources, &source{name: join, from: d})
	}
	if c.Discover != nil {
		sources = append(sources, &source{name: "Discover", from: c.Discover})
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return sources, errors.Join(errs...)
}

// gossipConfig sets memberlist up so that its traps stay shut: packets that fit with
// the transport's seal, no encryption and compression of its own, no label (which
// would look like QUIC on the shared socket), joins that give up early.
func gossipConfig(name string, t tuning, p *port, g *gossip, l *logs) *memberlist.Config {
	c := t.base()
	c.Name = name
	c.Transport = p
	c.ProbeInterval, c.ProbeTimeout, c.SuspicionMult = t.probe, t.probeTimeout, t.suspicion
	c.GossipInterval = t.gossip
	c.RetransmitMult = retransmit
	c.PushPullInterval /= 2
	c.TCPTimeout = exchangeTimeout
	c.UDPBufferSize = transport.MaxPacket
	c.EnableCompression = false
	c.HandoffQueueDepth = 4096
	c.DeadNodeReclaimTime = 0 // names are unique to a start: nothing to reclaim
	c.Delegate, c.Events, c.Alive, c.Conflict = g, g, g, g
	c.Logger = log.New(l, "", 0)
	return c
}

// spread is how long this node gossips a message of its own among n members:
// RetransmitMult * ceil(log10(n+1)) times, GossipNodes at most a round. Four rounds are
// enough to leave the rest to those who have heard it.
func spread(c *memberlist.Config, n int) time.Duration {
	sends := c.RetransmitMult * int(math.Ceil(math.Log10(float64(n+1))))
	each := max(1, min(c.GossipNodes, n-1))
	return time.Duration(min((sends+each-1)/each, 4)+1) * c.GossipInterval
}
