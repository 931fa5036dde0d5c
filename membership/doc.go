// Package membership knows who is there: it finds other nodes, keeps in touch with
// them by gossip and tells of every change in one ordered stream.
//
// It runs SWIM with the Lifeguard extensions (Das, Gupta, Motivala 2002; Dadgar,
// Phillips, Currey 2018) as built by hashicorp/memberlist, over the datagrams and
// streams of one transport.Transport. What that library leaves open is decided here:
// who restarted, who left and who failed, how a split heals, whom to ask at first.
//
// A node goes by its name; each start of it has a boot number, larger than all
// before. Under gossip it is name#boot, so that a restart is a new node there and
// needs no reconciling with the old one. The list shows one member per name, the
// newest boot, and drops what it hears of older ones.
//
// # Invariants
//
// M1: every watcher sees a member come (Joined) and go (Left, Failed) by turns, in
// one order that is the same for all; Restarted is both at once. Gossip never
// decides safety: nothing that must be agreed on may follow from this package alone.
//
// What a node tells of itself fits in 256 bytes, half of what memberlist can carry.
//
// # Concurrency
//
// All methods of List may be called from any goroutine; none but Start, Leave and
// Close waits. memberlist calls us with its own lock held: these calls take the
// list's lock for one step of the roster and never call back. No method calls
// memberlist with the list's lock held. Log lines go through a queue of 256, those
// beyond it are lost, because memberlist writes them under its lock too.
//
// Close waits for all goroutines of this package. memberlist has no such wait: a
// probe that is under way ends by itself, in one probe interval at most (eight while
// the node is overloaded), and nothing of it is heard of any more.
//
// # Failure
//
// A node that stops answering is Failed after 5 to 7 s at the pace LAN, and stays
// listed as such. A node that takes leave says so first: it is Leaving, then Left.
// One that comes back under a higher boot is Restarted at once, however short its
// absence. A failed member is called on for 24 hours, for 256 of them at most: two
// sides of a split find each other again within some 12 s of its healing. Loss of
// every seed and every member is met by asking the seeds again, for ever.
package membership
