// Package replica is one raft replica as a step function: messages, ticks, commands
// and answers of the disk go in; messages, writes and committed entries come out.
//
// It wraps [raft.RawNode] with asynchronous storage writes and adds what raft leaves
// open: which commands go into one entry, when the leader takes them, what time it
// stamps, and when it ends sessions. Package consensus is its shell, with
// goroutines, disks and sockets; package sim is the other one, with a seed.
//
// One turn of the shell's loop: feed what has arrived ([Replica.Step],
// [Replica.Enqueue], [Replica.Tick]), then read the clocks, then call
// [Replica.Ready] until it reports false, each time doing the [Work] it returns.
// Writes go through [Persist], committed entries through [Replica.ApplyEntries];
// the responses of both come back by [Replica.Step] or go to peers.
//
// # Invariants
//
//   - Nothing is acknowledged before it is durable: messages that depend on a write
//     are responses of that write (thesis of D. Ongaro, section 3.8; etcd's raft,
//     "Usage with Asynchronous Storage Writes").
//   - Commands are taken only by a leader that has applied the first entry of its
//     own term: only then does it know the whole log that it continues.
//   - Stamps never go back. The base of the cluster clock is set anew in each term,
//     later than the stamp that it continues, so that between two stamps of the log
//     the cluster clock advances by no more than one clock did (protocol 18-20).
//   - Only a committed Expire ends a session, and every command that was queued
//     when it was packed, a renewal perhaps, stands before it in the log.
//
// # Concurrency
//
// None: no goroutine, channel, lock, clock or I/O, and no randomness but that of
// raft's election timeouts (crypto/rand). One goroutine calls the methods of a
// Replica. [Replica.ApplyEntries] and [Persist] are the exceptions: each may run on
// a goroutine of its own, as long as calls of the same function do not overlap and
// keep the order of [Work].
//
// # Failure
//
// What raft or a storage calls a panic is contained and becomes a [FatalError]:
// the replica is dead then, [Replica.Err] says why, and every method does nothing.
// Its state on disk is intact; the process goes on without it.
package replica
