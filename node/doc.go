// Package node is the front door: one Node joins the cluster and hands out
// everything else.
//
//	n, err := node.Start(ctx, node.Config{Listen: ..., Join: ..., Expect: 3, Secret: ...})
//	err = n.Mutex("invoice/42").Do(ctx, func(ctx context.Context, h *lock.Hold) error { ... })
//
// Nodes find each other by gossip; a few of them, the voters, agree by Raft; all of
// them share locks, leaders, keys, counters and work. There is no server to run: it
// is all in the processes that import this package, over one UDP port each.
//
// # Concurrency
//
// All methods of [Node] may be called from any goroutine.
//
// # Failure
//
// Without a majority of the voters, calls wait until their ctx ends: their error Is
// [consensus.ErrNoQuorum] when certainly nothing happened, and a
// [*consensus.UnknownError] when it may have. They work again when the majority is
// back. A node whose disk fails stops to vote and goes on as a client. Nothing here
// panics or exits the process.
package node
