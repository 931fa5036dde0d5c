// Package machine is the replicated state machine: it decides who holds which lock,
// who leads, what a key holds and who works on which task.
//
// [Machine.Apply] carries out the commands of one committed raft entry, in order,
// and answers with results and events; package consensus acts on them. Every
// command names its session and a sequence, so that whatever copies of it the
// network makes, one is carried out (thesis of D. Ongaro, section 6.3). Time is the
// cluster clock: the leader stamps it into entries, it never goes back, and it
// stands while nobody leads. What falls due (lock delays, key lifetimes, delayed
// tasks) is done by the next entry before its own commands; sessions end by
// committed Expire commands only.
//
// # Invariants
//
// [Machine.Check] verifies them, and every test calls it after every entry.
//
//   - L1: a lock has at most one holder; between entries no first waiter is grantable.
//   - L2: tokens of one name are consecutive while its record lives, never reused.
//   - L3: only an open session holds, waits, leads or claims.
//   - L4: a command is applied at most once per (session, sequence).
//   - R1: equal applied index, equal [Machine.Hash], on every replica.
//   - T1: a task has one current claim. T2: an unfinished task is in exactly one place.
//
// # Concurrency
//
// None: no goroutine, channel, lock, clock, randomness or map order gets in. A
// Machine is not safe for concurrent use; queries may run beside each other but not
// beside Apply.
//
// # Failure
//
// A command that makes no sense is answered Invalid. An error of Apply means that
// the log itself is broken: the replica must stop, and nothing of that entry is kept.
package machine
