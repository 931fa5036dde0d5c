// Package sim runs a whole cluster of replicas and its clients in one goroutine under
// one seed, and checks after every step that nothing promised is broken.
//
// Real are package replica with raft, the machine, the log on a disk of package vfs,
// and the founding. Simulated are time, clocks that run at rates of their own, the
// network (loss, doubles, delay, reordering, one-way cuts, partitions), disks that
// are slow or lose power in the middle of a write, processes that stop, crash and
// come back, and clients that hold sessions, locks, keys, counters and tasks by the
// same commands and the same rules as packages session and consensus.
//
// # Invariants
//
// Everything that is committed is applied a second time by a reference machine, one
// entry at a time, and checked there:
//
//   - R1: each replica at an applied index has the reference's hash, and now and then
//     its digest; no index ever has two entries.
//   - W1: what was answered stays in the log, through every loss of power.
//   - L1, L2, L3: machine.Check after each entry; tokens of a name are consecutive.
//   - L4: copies of a command have one effect: counters return each value once.
//   - S1: when a lock or a task goes to another, nobody else believes to have it.
//   - T1, T2: an end under an old claim changes nothing; each task that was
//     acknowledged is done once or still known.
//   - F1: one genesis is decided, whatever happens to the founding.
//   - Reads see everything acknowledged before they began (P1).
//   - After the faults end, every call is answered within a bounded time (P10).
//
// The checks have teeth: each mutant in this package breaks one rule, and the tests
// demand that some seed notices.
//
// # Concurrency
//
// None. The one source of randomness besides the seed is raft's own, crypto/rand: a
// test makes it repeat with cryptotest.SetGlobalRandom. Then a seed repeats bit for
// bit, in every process.
//
// # Failure
//
// A broken invariant ends the run; the Report names it, the step and the seed.
package sim
