// Package session keeps a node's claim on the cluster alive: locks, leaderships,
// ephemeral keys and tasks all hang on a session and end with it.
//
// A session is a lease of TTL. The [Keeper] of a node renews all its sessions
// with one command per round, every TTL/5 and at least every 2 s. Each side has its own end
// of the lease, with 10 % of the TTL between them on either side:
//
//	owner:   stops believing at  send of the last acknowledged renewal + 0.9 TTL - grace
//	cluster: may end it from     apply of that renewal + 1.1 TTL, by a committed command only
//
// where grace = min(TTL/10, 1 s) is what a function that is told to stop has left
// before anyone else can be granted what it holds.
//
// # Invariants
//
// S1: an owner stops believing before the next one is granted, as long as clock
// rates agree within 10 %; wall clocks play no part. The owner's clock counts the
// time that the machine is suspended, where the system can tell (Linux).
//
// A session that has ended for its owner is never renewed again, even if the
// cluster would take the renewal (final is final); the cluster ends it by itself.
//
// # Concurrency
//
// Everything here may be called from any goroutine.
//
// # Failure
//
// Without a quorum no renewal is acknowledged: after at most 0.9 TTL the
// session's context ends with [consensus.ErrSessionExpired] as its cause. A change
// of leader that takes less than about 0.6 TTL is not noticed.
package session
