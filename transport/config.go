package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
)

const (
	// MinSecret is the shortest cluster secret that is accepted, in bytes. A node
	// shows its certificate to strangers, so a short secret could be guessed at leisure.
	MinSecret = 16
	// MaxMessage is the largest body of a call or of its answer, in bytes.
	MaxMessage = 4 << 20
	// MaxPacket is the largest gossip packet, in bytes. With the seal and the headers
	// of IPv6 and UDP it fits the 1280 bytes that every IPv6 path carries; larger
	// ones may be refused by the network, since the socket forbids fragments.
	MaxPacket = 1187
)

// Config is what a [Transport] is made of.
type Config struct {
	// Conn is the one socket: a *net.UDPConn or an in-memory connection whose
	// addresses are *net.UDPAddr. The Transport owns it from New on, also if New fails.
	Conn net.PacketConn
	// Advertise is what peers dial. It must be a concrete address and port.
	Advertise netip.AddrPort
	// Name is the name of this node, unique in the cluster:
	// [A-Za-z0-9][A-Za-z0-9._-]*, at most 63 bytes.
	Name string
	// Boot grows with every start of the node that has this Name. Peers refuse a
	// smaller one than they have seen and drop the connections of smaller ones.
	Boot uint64
	// Cluster is the name of the cluster, of the same form as Name.
	Cluster string
	// Secrets are the cluster secrets, at least one, each at least MinSecret bytes.
	// The first signs and seals, all are accepted. A secret is changed in three
	// rounds: every node {old, new}, every node {new, old}, every node {new}.
	Secrets [][]byte
	// Logger receives what no caller is told; default slog.Default().
	Logger *slog.Logger
}

// Peer is another node as its certificate and its Hello name it.
type Peer struct {
	Name string
	Boot uint64
	Addr netip.AddrPort // its Advertise
}

// AddressBook knows where peers are. Lookup is asked before every dial and must not
// block; boot is the highest one known, 0 for unknown.
type AddressBook interface {
	Lookup(name string) (addr netip.AddrPort, boot uint64, ok bool)
}

// PeerEvent tells that a peer became reachable or ceased to be. For one peer, up and
// down alternate. Cause says why it went down; nil means that the connection was
// closed because nobody used it.
type PeerEvent struct {
	Peer  Peer
	Up    bool
	Cause error
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// check finds all that is wrong with the configuration, not only the first.
func (c *Config) check() error {
	var errs []error
	if c.Conn == nil {
		errs = append(errs, errors.New("Conn is missing"))
	}
	if !c.Advertise.IsValid() || c.Advertise.Port() == 0 || c.Advertise.Addr().IsUnspecified() {
		errs = append(errs, fmt.Errorf("Advertise %v: want the address and port that peers dial", c.Advertise))
	}
	for field, name := range map[string]string{"Name": c.Name, "Cluster": c.Cluster} {
		if !nameForm.MatchString(name) {
			errs = append(errs, fmt.Errorf("%s %q: want %v", field, name, nameForm))
		}
	}
	if len(c.Secrets) == 0 {
		errs = append(errs, errors.New("Secrets is empty: want at least one"))
	}
	for i, s := range c.Secrets {
		if len(s) < MinSecret {
			errs = append(errs, fmt.Errorf("Secrets[%d] has %d bytes: want at least %d", i, len(s), MinSecret))
		}
	}
	return errors.Join(errs...)
}
