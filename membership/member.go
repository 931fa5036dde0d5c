package membership

import (
	"maps"
	"net/netip"
	"time"
)

// Member is a node as this one sees it.
type Member struct {
	Name   string
	Boot   uint64 // of its latest start that was heard of
	Addr   string // what peers dial, "ip:port"
	Zone   string // failure domain, "" if none was given
	State  State
	Labels map[string]string // the caller's own copy
	Voter  bool              // says that it votes
	Since  time.Time         // when this node saw it enter State; local clock
}

// State is how a member is doing.
type State uint8

// States of a member. StateLeft is seen in events only: who left is not listed.
const (
	StateAlive   State = iota + 1
	StateLeaving       // alive, and has said that it is about to leave
	StateFailed        // stopped answering without leave; listed for 24 hours, 256 members at most
	StateLeft          // gone after it had taken leave
)

// String is the state in lower case.
func (s State) String() string {
	return nameOf(int(s), "alive", "leaving", "failed", "left")
}

// present says whether a member in this state can be talked to.
func (s State) present() bool { return s == StateAlive || s == StateLeaving }

// Event is one change, or a mark between changes.
type Event struct {
	Kind   Kind
	Member Member // as it is after the change; zero for Synced and Resync
}

// Kind says what an Event tells.
type Kind uint8

// Kinds of events. Joined on one hand, Left and Failed on the other, alternate for
// every name (M1).
const (
	Joined    Kind = iota + 1
	Updated        // address, zone, labels or vote changed
	Leaving        // says that it is about to leave
	Left           // gone, had said so
	Failed         // gone without a word
	Restarted      // came back under a higher boot before it was missed: all that it held in memory is lost
	Conflict       // two nodes that live at the same time use one name; Member is the other one, or the older one
	Synced         // end of a snapshot: what follows are changes
	Resync         // the watcher was too slow: intermediate changes are left out; the differences follow, then Synced
)

// String is the kind in lower case.
func (k Kind) String() string {
	return nameOf(int(k), "joined", "updated", "leaving", "left", "failed", "restarted", "conflict", "synced", "resync")
}

func nameOf(i int, names ...string) string {
	if i < 1 || i > len(names) {
		return "unknown"
	}
	return names[i-1]
}

// Peer is another node with what it told of itself, for the rooms that build on
// membership.
type Peer struct {
	Name  string
	Boot  uint64
	Addr  netip.AddrPort
	State State // StateAlive, StateLeaving or StateFailed
	Note  Note
}

// Note is what a node's own rooms let all others know. It says whom to ask; nothing
// unsafe may follow from an old or a wrong one.
type Note struct {
	RaftID   uint64
	Cluster  uint64 // of a founded cluster; 0 = none yet. Nodes of another one are refused
	Term     uint64
	Digest   uint32
	Phase    uint8
	Voter    bool
	Leader   bool
	NoDir    bool
	Eligible bool
}

// alike says whether a watcher could not tell a from b, states apart.
func alike(a, b Member) bool {
	return a.Addr == b.Addr && a.Zone == b.Zone && a.Voter == b.Voter && maps.Equal(a.Labels, b.Labels)
}
