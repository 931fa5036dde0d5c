// Package founding decides who founds a cluster: single-decree Paxos (Lamport,
// "Paxos Made Simple", 2001, section 2) among the nodes that gossip has found,
// over one value, the [Genesis].
//
// The quorum is floor(Expect/2)+1 of the population that every node declares in
// its configuration, never of the nodes that happen to be in sight: two groups
// that have not met cannot tell "the others do not exist" from "the others are
// cut off", so something has to be agreed beforehand, and Expect is that.
//
// # Invariants
//
// F1: at most one Genesis is decided while the number of identities that ever
// take part is at most 2*quorum-1. Any two quorums then share an acceptor, and an
// acceptor keeps its promise across restarts because its [State] is on disk
// before its answer leaves. Three rules keep the number of identities honest:
//
//   - more identities in sight than Expect: nobody founds;
//   - a node that keeps nothing on disk comes back as a new identity, so its answer
//     counts only towards a founding that all Expect nodes accept;
//   - founders hold promises from a majority of the addresses that their
//     configuration names: late nodes with the same configuration, cut off from the
//     cluster that exists, cannot found a second one.
//
// Whoever has decided answers every question with the decision (formed wins), and
// no answer is never taken for "no cluster there".
//
// # Concurrency
//
// Nothing here is safe for concurrent use: one goroutine of the consensus room
// drives it, and writes each new State to disk before it acts on it.
package founding
