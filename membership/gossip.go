package membership

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hashicorp/memberlist"
)

// msgFarewell is the first byte of the one message that members send each other:
// u8 msgFarewell | name#boot of the sender.
const msgFarewell = 1

// gossip is what memberlist calls. All of it runs under memberlist's node lock.
type gossip struct{ list *List }

var (
	_ memberlist.Delegate         = (*gossip)(nil)
	_ memberlist.EventDelegate    = (*gossip)(nil)
	_ memberlist.AliveDelegate    = (*gossip)(nil)
	_ memberlist.ConflictDelegate = (*gossip)(nil)
)

func (g *gossip) NotifyJoin(n *memberlist.Node)   { g.list.see(sightOf(n, true)) }
func (g *gossip) NotifyUpdate(n *memberlist.Node) { g.list.see(sightOf(n, true)) }
func (g *gossip) NotifyLeave(n *memberlist.Node)  { g.list.see(sightOf(n, false)) }

// NotifyAlive refuses nodes that cannot be members: before the roster hears of them,
// and on every path by which gossip brings them. It is asked about this node as well.
func (g *gossip) NotifyAlive(n *memberlist.Node) error {
	if n.Name == g.list.name {
		return nil
	}
	s, err := sightOf(n, true)
	if err != nil {
		return err
	}
	if own := g.list.cluster(); own != 0 && s.meta.note.Cluster != 0 && s.meta.note.Cluster != own {
		return fmt.Errorf("node %s at %v belongs to cluster %x, this one to %x: two founded clusters do not merge",
			s.name, s.addr, s.meta.note.Cluster, own)
	}
	return nil
}

// NotifyConflict hears of one name and boot at two addresses: a copied data directory.
func (g *gossip) NotifyConflict(_, other *memberlist.Node) {
	if s, err := sightOf(other, true); err == nil {
		g.list.clash(s)
	}
}

// NodeMeta is what this node tells of itself; checkSize saw to it that it fits.
func (g *gossip) NodeMeta(int) []byte { return g.list.ownMeta() }

// NotifyMsg takes a farewell that a member sent to us directly.
func (g *gossip) NotifyMsg(b []byte) {
	if len(b) == 0 || b[0] != msgFarewell {
		return // of a newer version
	}
	if i, err := incarnationOf(string(b[1:])); err == nil {
		g.list.hear(i)
	}
}

func (g *gossip) GetBroadcasts(int, int) [][]byte   { return nil }
func (g *gossip) LocalState(bool) []byte            { return nil }
func (g *gossip) MergeRemoteState(_ []byte, _ bool) {}

// gossipName is the name of one start of a node. '#' is in no node name.
func gossipName(name string, boot uint64) string {
	return name + "#" + strconv.FormatUint(boot, 10)
}

// incarnationOf reads a gossipName.
func incarnationOf(s string) (incarnation, error) {
	name, b, some := strings.Cut(s, "#")
	boot, err := strconv.ParseUint(b, 10, 64)
	if !some || name == "" || err != nil {
		return incarnation{}, fmt.Errorf("node name %q: want name#boot", s)
	}
	return incarnation{name, boot}, nil
}

// sightOf reads a node of memberlist. A node that is gone may come without a meta.
func sightOf(n *memberlist.Node, up bool) (sight, error) {
	i, err := incarnationOf(n.Name)
	if err != nil {
		return sight{}, err
	}
	s := sight{incarnation: i, up: up}
	ip, ok := netip.AddrFromSlice(n.Addr)
	if !ok {
		return sight{}, fmt.Errorf("node %s: no address", n.Name)
	}
	s.addr = netip.AddrPortFrom(ip.Unmap(), n.Port)
	if s.meta, err = decodeMeta(n.Meta); err != nil && up {
		return sight{}, fmt.Errorf("node %s at %v: %w", n.Name, s.addr, err)
	}
	return s, nil
}
