package node

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/clatter-go/clatter/membership"
)

// Config says how a node takes part. The zero value is a cluster of one on loopback.
type Config struct {
	// Name is unique in the cluster: letters, digits, dot, underscore and dash, at
	// most 63 bytes, beginning with a letter or a digit. Default: random, kept in Dir.
	Name string

	// Cluster is the name of the cluster, formed like Name. Nodes of another cluster
	// name are refused. Default "clatter".
	Cluster string

	// Dir is the data directory, for one node at a time. Default "": everything is
	// kept in memory, and a node that starts again is a new node.
	Dir string

	// Listen is the one UDP address for gossip, consensus and calls.
	// Default "127.0.0.1:0": loopback, a free port.
	Listen string

	// Advertise is the host:port that peers dial. It must be set when Listen names
	// no single address. Default: the address of the socket.
	Advertise string

	// Join names the seeds: "host:port", "dns://name:port", "srv://_svc._udp.name",
	// "file:///path" (one address a line, read again and again). The node's own
	// address among them is no peer. Default: none.
	Join []string

	// Discover finds seeds beside Join. Default: none.
	Discover membership.Discoverer

	// Expect is the population that founds the cluster: at once when all of it is in
	// sight, and when floor(Expect/2)+1 of it, but at least the first voters, have been
	// in sight unchanged for 5 s. It is
	// equal on all nodes. 0 only joins a cluster that exists or will be founded by
	// others. A node with a cluster in Dir never founds. Default 1 when Join and Discover
	// are empty, else 0.
	Expect int

	// FoundAlone allows what can make two clusters of one: Expect 1 beside other
	// seeds, and founding without Dir on an address that is not loopback. Default false.
	FoundAlone bool

	// Voters is the wanted number of voters, odd. The first voters are the largest
	// odd number that is at most Voters and Expect. Default 3.
	Voters int

	// NonVoter keeps the node from voting and from founding. Default false.
	NonVoter bool

	// Zone is the failure domain. Voters are spread over zones. At most 32 bytes. Default "".
	Zone string

	// Labels are visible to all members. Keys and values have 64 bytes at most, all
	// together 128. Default none.
	Labels map[string]string

	// Secret is the cluster's shared secret, 16 bytes or more; 32 random ones are
	// right. Mutual TLS identities and the seal on gossip are derived from it: who has
	// it can be any node. "" is refused unless Listen, Advertise and Join are all
	// loopback. Default "".
	Secret string

	// SecretFile names a file with the secret instead. It is made with 32 random
	// bytes in hex, mode 0600, where it is missing. Default none.
	SecretFile string

	// Pace is the timing: LAN, Fast or WAN. Default LAN.
	Pace Pace

	// SessionTTL is the lease of the node's own session: a node that dies loses its
	// locks after 1.1 of it. At LAN pace 3 s or more. Default 10 s.
	SessionTTL time.Duration

	// Logger receives what happens. Default slog.Default().
	Logger *slog.Logger
}

// Pace is a set of timings that belong together. All nodes of a cluster use the same.
type Pace uint8

// Paces.
const (
	LAN  Pace = iota // one site: a dead leader is replaced in 0.4 to 1 s
	Fast             // quiet machines on one switch, and tests: four times as fast, and easily alarmed
	WAN              // sites that are far apart: five times as slow
)

// String names the pace.
func (p Pace) String() string {
	if p > WAN {
		return fmt.Sprintf("Pace(%d)", uint8(p))
	}
	return [...]string{"LAN", "Fast", "WAN"}[p]
}

// ConfigError is one field of a Config that cannot work. Start returns all of them joined.
type ConfigError struct {
	Field  string
	Reason string
}

// Error names the field.
func (e *ConfigError) Error() string { return "config: " + e.Field + ": " + e.Reason }

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// withDefaults fills what is empty and can be filled without looking outside.
func (c Config) withDefaults() Config {
	if c.Cluster == "" {
		c.Cluster = "clatter"
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Voters == 0 {
		c.Voters = 3
	}
	if c.SessionTTL == 0 {
		c.SessionTTL = 10 * time.Second
	}
	if c.Expect == 0 && len(c.Join) == 0 && c.Discover == nil {
		c.Expect = 1
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// check returns every fault of the configuration, each with its field.
func (c *Config) check() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
	if c.Name != "" && !nameForm.MatchString(c.Name) {
		bad("Name", "%q: use letters, digits, '.', '_' and '-', at most 63, a letter or digit first", c.Name)
	}
	if !nameForm.MatchString(c.Cluster) {
		bad("Cluster", "%q: use letters, digits, '.', '_' and '-', at most 63, a letter or digit first", c.Cluster)
	}
	if c.Expect < 0 {
		bad("Expect", "%d: use the number of nodes that found the cluster, or 0 to join only", c.Expect)
	}
	if c.Voters < 0 || c.Voters%2 == 0 || c.Voters > 9 {
		bad("Voters", "%d: use an odd number from 1 to 9", c.Voters)
	}
	if c.Pace > WAN {
		bad("Pace", "%v: use LAN, Fast or WAN", c.Pace)
	} else if least := c.Pace.leastTTL(); c.SessionTTL < least {
		bad("SessionTTL", "%v: at pace %v a session needs at least %v to outlive a change of leader", c.SessionTTL, c.Pace, least)
	}
	c.checkAddresses(bad)
	c.checkLabels(bad)
	return errors.Join(errs...)
}

func (c *Config) checkAddresses(bad func(field, format string, args ...any)) {
	if host, _, err := splitAddr(c.Listen); err != nil {
		bad("Listen", "%v", err)
	} else if c.Advertise == "" && (host == "" || unspecified(host)) {
		bad("Advertise", "Listen %q names no single address: say which one peers dial", c.Listen)
	}
	if c.Advertise != "" {
		if host, _, err := splitAddr(c.Advertise); err != nil {
			bad("Advertise", "%v", err)
		} else if host == "" || unspecified(host) {
			bad("Advertise", "%q cannot be dialed", c.Advertise)
		}
	}
	for _, seed := range c.Join {
		if err := membership.CheckSeed(seed); err != nil {
			bad("Join", "%v", err)
		}
	}
	switch {
	case c.Secret != "" && c.SecretFile != "":
		bad("SecretFile", "Secret is set too: use one of them")
	case c.Secret != "" && len(c.Secret) < 16:
		bad("Secret", "%d bytes: use 16 or more, 32 random ones are right", len(c.Secret))
	case c.Secret == "" && c.SecretFile == "" && !c.loopback():
		bad("Secret", "it may be empty only where Listen, Advertise and Join are all loopback")
	}
}

func (c *Config) checkLabels(bad func(field, format string, args ...any)) {
	if len(c.Zone) > 32 {
		bad("Zone", "%d bytes: at most 32", len(c.Zone))
	}
	all := 0
	for k, v := range c.Labels {
		all += len(k) + len(v)
		if k == "" || len(k) > 64 || len(v) > 64 {
			bad("Labels", "%q: keys and values have at most 64 bytes, and keys at least 1", k)
		}
	}
	if all > 128 {
		bad("Labels", "%d bytes in all: at most 128, larger things belong in KV", all)
	}
}

// checkFounding returns what could make two clusters of one. It is asked only where
// there is no cluster in Dir: a node that has one never founds.
func (c *Config) checkFounding() error {
	if c.FoundAlone || c.Expect != 1 {
		return nil
	}
	others := 0
	for _, seed := range c.Join {
		if seed != c.Listen && seed != c.Advertise {
			others++
		}
	}
	if others > 0 || c.Discover != nil {
		return &ConfigError{Field: "Expect", Reason: "1 beside other seeds would found a cluster on every node: set the number of nodes that found together, or 0 to join; FoundAlone if it is meant"}
	}
	if c.Dir == "" && !c.loopback() {
		return &ConfigError{Field: "Dir", Reason: "a founder that forgets its cluster founds another one at its next start: set Dir; FoundAlone if it is meant"}
	}
	return nil
}

// loopback reports whether no address leaves this machine.
func (c *Config) loopback() bool {
	if c.Discover != nil {
		return false
	}
	addrs := append([]string{c.Listen}, c.Join...)
	if c.Advertise != "" {
		addrs = append(addrs, c.Advertise)
	}
	for _, a := range addrs {
		host, _, err := splitAddr(a)
		ip, bad := netip.ParseAddr(host)
		if err != nil || host != "localhost" && (bad != nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

func splitAddr(addr string) (host string, port uint16, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("%q: use host:port", addr)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q: the port is a number from 0 to 65535", addr)
	}
	return strings.TrimSpace(host), uint16(n), nil
}

func unspecified(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsUnspecified()
}

// leastTTL keeps a session alive over a change of leader (protocol rule: 0.9 TTL
// covers a renewal interval of TTL/5, a grace of TTL/10 and three elections).
func (p Pace) leastTTL() time.Duration {
	return [...]time.Duration{3 * time.Second, time.Second, 15 * time.Second}[p]
}
