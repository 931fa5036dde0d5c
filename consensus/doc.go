// Package consensus decides: a few nodes vote (Raft, by [go.etcd.io/raft/v3]) and
// every node, voter or not, has a [Client] that brings commands to the leader and
// reads to a voter.
//
// It is made from pure cores: internal/founding decides who the first voters are,
// internal/replica is one Raft replica as a step function, internal/machine is the
// replicated state. This package gives them goroutines, disk and network:
//
//	Do -> Client -> one stream to the leader -> loop -> replica packs an entry
//	   -> persister (fsync) and senders -> a majority -> applier -> machine
//	   -> the answer goes back by its place in the entry
//
// # Invariants
//
//   - The replica is touched by one goroutine, the loop of its voter.
//   - No answer of a write leaves before the entry is on the disk of a majority and
//     of the leader, and applied there (P2).
//   - No message that raft ties to a write leaves before that write is durable.
//   - After the first error of the log nothing is acknowledged any more by this
//     process: the replica gives leadership away and falls silent.
//   - The loop never waits: not for the disk, not for a peer, not for a client.
//     Bounded queues drop what raft sends again; storage acknowledgements have
//     queues of their own that are never full, because the loop and the persister
//     would otherwise wait for one another.
//   - A raft id belongs to one directory for all time. A directory whose log is gone
//     gets a new one (vote amnesia).
//
// # Concurrency
//
// Engine and Client may be used from any number of goroutines.
//
// # Failure
//
// Calls are sent again, with the same bytes, until they are answered or their ctx
// ends. When it ends, the error Is [ErrNoQuorum] if no attempt can have reached the
// log, else [ErrUnknown]. When a leader dies, calls succeed again as soon as the
// next one is elected; while no majority of the voters is connected, they wait.
// A broken disk ends the replica ([Engine.Err]), not the node: its Client goes on
// with the other voters, and the host process is never harmed.
package consensus
