// Package lock has the cluster's locks: first come first served, with fencing tokens.
//
// A hold is a value ([Hold]), not a state of the [Mutex]. Its context ends before
// anyone else can be granted the name, as long as clock rates agree within 10 %
// (S1, package session). What the holder does to the outside world is protected
// by its [Token] alone, and only where the resource checks it: see [Fence].
//
// # Invariants
//
// L1: a lock has at most one holder. L2: the tokens of a name are consecutive and
// never reused.
//
// # Concurrency
//
// Everything here may be called from any goroutine.
//
// # Failure
//
// When the holder's node dies its session ends after at most 1.1 TTL (plus one
// grace per change of leader) and the next in line is granted in the same entry of
// the log. Without a quorum nothing is granted and nothing is freed; holders stop
// believing at their deadline.
package lock
