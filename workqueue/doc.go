// Package workqueue spreads tasks over the nodes of a cluster.
//
// A queue is durable or volatile. A durable queue's tasks are in the ledger, a part
// of the replicated state: Submit returns when a majority of the voters has the task
// on disk, the ledger gives tasks to the nodes that want some, and a node's claims
// live on a session that it renews. A volatile queue's tasks stay with the node
// where they were submitted; nodes that run out of work steal from it, and it runs
// again what a dead thief had. Nothing of a volatile queue passes through consensus.
//
// On a node both kinds feed the same bench: a lock-free inbox, and a work-stealing
// ring per worker.
//
// # Invariants
//
// T1: a task has one current claim; what is reported under another claim, or for
// another attempt, changes nothing. T2: every task that is not finished is in
// exactly one place; in a volatile queue that holds up to false verdicts of death,
// and the first report of the current attempt counts. The same attempt is started
// twice only after Snooze, which does not count as an attempt.
//
// # Concurrency
//
// All methods of Queue and Engine may be called from any number of goroutines. A
// Task belongs to its handler. Handlers run on the N goroutines of their Handle
// call; no goroutine is made for a task.
//
// # Failure
//
// A worker's node dies: durable tasks that it had go back to ready when its lease
// has passed, volatile ones when membership says that it failed or sees it with a
// new boot; both as a further attempt. A node that loses its lease ends the contexts
// of its handlers before anybody else can be given the task. The submitter's node
// dies: durable tasks stay, volatile tasks go with it. On lost quorum durable
// Submit, Wait, Cancel and Stats wait until their ctx ends, running handlers go on
// until the lease has passed, and volatile queues are not touched.
package workqueue
