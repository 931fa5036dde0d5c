package consensus

import (
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/transport"
)

// Config says which node this is and how it takes part.
type Config struct {
	Name       string               // of this node, unique in the cluster
	Boot       uint64               // grows with every start of the node
	Cluster    string               // name of the cluster
	FS         vfs.FS               // where Dir lies; default the operating system's
	Dir        string               // identity, log and snapshots; "" keeps them in memory, and every start is a new identity
	Transport  *transport.Transport // Start registers handlers on it; it outlives the Engine
	Roster     Roster               // who is in sight
	Expect     int                  // the population that founds; 0 only joins
	Voters     int                  // wanted voters, odd; default 3
	FoundAlone bool                 // waive the majority of the seed addresses
	NonVoter   bool                 // never votes and never founds
	Zone       string               // failure domain; voters are spread over zones
	Pace       Pace                 // default LAN
	Logger     *slog.Logger         // default slog.Default()
}

// Pace is the timing of the replica.
type Pace struct {
	Tick      time.Duration // unit of the two below
	Heartbeat int           // ticks between two heartbeats of the leader
	Election  int           // ticks without a leader before an election: each lasts Election to 2*Election-1
	DiskStall time.Duration // a write that takes longer costs the leader its office
}

var (
	// LAN elects a new leader 0.32 to 0.62 s after the last heartbeat of the old one.
	LAN = Pace{Tick: 20 * time.Millisecond, Heartbeat: 2, Election: 16, DiskStall: 500 * time.Millisecond}
	// Fast is for tests and for quiet machines on one switch: 80 to 155 ms.
	Fast = Pace{Tick: 5 * time.Millisecond, Heartbeat: 2, Election: 16, DiskStall: 250 * time.Millisecond}
	// WAN is for voters in different regions: 1.6 to 3.1 s.
	WAN = Pace{Tick: 100 * time.Millisecond, Heartbeat: 2, Election: 16, DiskStall: 2 * time.Second}
)

func (p Pace) election() time.Duration { return time.Duration(p.Election) * p.Tick }

// Peer is a node in sight.
type Peer struct {
	Name string
	Boot uint64
	Addr netip.AddrPort
	Dead bool // gossip thinks it failed
	Announcement
}

// Announcement is what a node tells of itself by gossip. Nothing unsafe follows
// from a wrong or old one: it says whom to ask.
type Announcement struct {
	RaftID   uint64
	Cluster  uint64 // first 8 bytes of the genesis hash; 0 before the founding
	Phase    uint8  // PhaseFresh or PhaseFormed
	Voter    bool
	Leader   bool
	NoDir    bool
	Eligible bool   // takes part in foundings
	Digest   uint32 // of the declared population
	Term     uint64 // with Leader: its term
}

// Phases of a node.
const (
	PhaseFresh  uint8 = 0 // belongs to no cluster yet
	PhaseFormed uint8 = 1 // knows its cluster's genesis
)

// Roster is what this package needs of the membership: who is in sight, and a
// place for our own announcement. Its methods do not block.
type Roster interface {
	// Peers returns the others, dead ones included until they are forgotten.
	Peers() []Peer
	// Changed returns a channel that is closed at the next change of Peers.
	Changed() <-chan struct{}
	// Announce replaces what peers see of this node.
	Announce(Announcement)
	// Seeds returns every address that the configuration and the discoverer name,
	// our own included if it is named.
	Seeds() []netip.AddrPort
}

func (c *Config) check() error {
	if c.Voters == 0 {
		c.Voters = 3
	}
	if c.Pace == (Pace{}) {
		c.Pace = LAN
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Name == "" || c.Cluster == "":
		return fmt.Errorf("consensus: %w: Name %q and Cluster %q must be set", ErrInvalid, c.Name, c.Cluster)
	case c.Transport == nil || c.Roster == nil:
		return fmt.Errorf("consensus: %w: Transport and Roster must be set", ErrInvalid)
	case c.Voters < 1 || c.Voters%2 == 0:
		return fmt.Errorf("consensus: %w: Voters is %d and must be odd", ErrInvalid, c.Voters)
	case c.Expect < 0:
		return fmt.Errorf("consensus: %w: Expect is %d", ErrInvalid, c.Expect)
	case c.Pace.Tick <= 0 || c.Pace.Heartbeat < 1 || c.Pace.Election < 4*c.Pace.Heartbeat:
		return fmt.Errorf("consensus: %w: Pace %+v: an election must take at least 4 heartbeats", ErrInvalid, c.Pace)
	}
	return nil
}
