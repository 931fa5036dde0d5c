package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus/election"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/workqueue"
)

// lockAndLead takes the lock from a node that does not vote, gives it to the raft
// leader, and makes that the application's leader as well.
func (c *cluster) lockAndLead(ctx context.Context) error {
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	from := c.client(s.Voters)
	h, err := from.Mutex("invoice/42").Lock(ctx)
	if err != nil {
		return fmt.Errorf("lock on %s: %w", from.Name(), err)
	}
	say("%s, no voter, holds lock invoice/42 with token %d", from.Name(), h.Token())
	if err := c.fence.Admit(ctx, "invoices", h.Token()); err != nil {
		return err
	}
	if err := h.Unlock(ctx); err != nil {
		return fmt.Errorf("unlock on %s: %w", from.Name(), err)
	}

	leader := c.named(s.Leader)
	if leader == nil {
		return fmt.Errorf("the leader %s is none of ours", s.Leader)
	}
	c.holder = leader.Name()
	if c.hold, err = leader.Mutex("invoice/42").Lock(ctx); err != nil {
		return fmt.Errorf("lock on %s: %w", leader.Name(), err)
	}
	if c.lead, err = leader.Election("compactor").Campaign(ctx, []byte(leader.Name())); err != nil {
		return fmt.Errorf("campaign on %s: %w", leader.Name(), err)
	}
	say("%s, the raft leader, holds invoice/42 with token %d and leads compactor with epoch %d",
		leader.Name(), c.hold.Token(), c.lead.Epoch())
	return c.fence.Admit(ctx, "invoices", c.hold.Token())
}

// killTheLeader closes the node that has it all, without a word to the others, and
// shows who comes next.
func (c *cluster) killTheLeader(ctx context.Context) error {
	i := slices.IndexFunc(c.nodes, func(n *node.Node) bool { return n.Name() == c.holder })
	victim := c.nodes[i]
	next := c.nodes[(i+1)%len(c.nodes)]
	type successor struct {
		hold *lock.Hold
		lead *election.Leadership
		err  error
	}
	won := make(chan successor, 1)
	go func() {
		var n successor
		if n.hold, n.err = next.Mutex("invoice/42").Lock(ctx); n.err == nil {
			n.lead, n.err = next.Election("compactor").Campaign(ctx, []byte(next.Name()))
		}
		won <- n
	}()

	c.dead, c.nodes[i] = victim.Name(), nil
	killed := time.Now()
	if i == 0 {
		c.seen() // it was the one whose gossip is shown
		c.watch.Wait()
	}
	if err := victim.Close(); err != nil {
		return fmt.Errorf("close %s: %w", victim.Name(), err)
	}
	say("%s is killed; it believes no more: hold %v, leadership %v", victim.Name(), c.hold.Valid(), c.lead.IsLeader())
	if c.hold.Valid() || c.lead.IsLeader() {
		return fmt.Errorf("%s is closed and still believes", victim.Name())
	}
	s, err := c.status(ctx)
	if err != nil {
		return err
	}
	say("%s leads in term %d, %v after the kill", s.Leader, s.Term, time.Since(killed).Round(time.Millisecond))

	n := <-won
	if n.err != nil {
		return fmt.Errorf("the next holder on %s: %w", next.Name(), n.err)
	}
	say("%s holds invoice/42 with the next token %d and leads compactor with epoch %d, %v after the kill: the dead session had to expire",
		next.Name(), n.hold.Token(), n.lead.Epoch(), time.Since(killed).Round(time.Millisecond))
	if n.hold.Token() != c.hold.Token()+1 || n.lead.Epoch() <= c.lead.Epoch() {
		return fmt.Errorf("token %d after %d, epoch %d after %d", n.hold.Token(), c.hold.Token(), n.lead.Epoch(), c.lead.Epoch())
	}
	if err := c.fence.Admit(ctx, "invoices", n.hold.Token()); err != nil {
		return err
	}
	err = c.fence.Admit(ctx, "invoices", c.hold.Token())
	if err == nil {
		return fmt.Errorf("the fence admitted the stale token %d", c.hold.Token())
	}
	say("a late write of %s is refused: %v", victim.Name(), err)
	if err := n.hold.Unlock(ctx); err != nil {
		return err
	}
	return n.lead.Resign(ctx)
}

type thumbnail struct{ Number int }

// tally counts who ran what.
type tally struct {
	mu    sync.Mutex // guards what follows
	ran   map[string]int
	stole map[string]int
}

func (c *tally) count(node string, stolen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ran[node]++
	if stolen {
		c.stole[node]++
	}
}

// shareWork submits 500 tasks on one node; all nodes run them.
func (c *cluster) shareWork(ctx context.Context) error {
	const tasks = 500
	count := &tally{ran: map[string]int{}, stole: map[string]int{}}
	working, finish := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer finish()
	var queue *workqueue.Queue[thumbnail]
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		q, err := workqueue.Open[thumbnail](n, "thumbnails", workqueue.Config{Mode: workqueue.Volatile})
		if err != nil {
			return fmt.Errorf("open the queue on %s: %w", n.Name(), err)
		}
		workers.Go(func() { work(working, n.Name(), q, count) })
		if queue == nil {
			queue = q
		}
	}
	start := time.Now()
	if err := submitAndWait(ctx, queue, tasks); err != nil {
		return err
	}
	say("%d tasks submitted on one node are done in %v", tasks, time.Since(start).Round(time.Millisecond))
	count.mu.Lock()
	defer count.mu.Unlock()
	sum := 0
	for _, n := range c.nodes {
		if n != nil {
			say("%s ran %d, %d of them stolen from another node", n.Name(), count.ran[n.Name()], count.stole[n.Name()])
			sum += count.ran[n.Name()]
		}
	}
	if sum != tasks {
		return fmt.Errorf("%d runs of %d tasks", sum, tasks)
	}
	return nil
}

// work runs tasks of one node until ctx ends.
func work(ctx context.Context, node string, q *workqueue.Queue[thumbnail], count *tally) {
	q.Handle(ctx, func(ctx context.Context, t *workqueue.Task[thumbnail]) error {
		select {
		case <-time.After(5 * time.Millisecond): // the work
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		count.count(node, t.Stolen)
		return t.SetResult(t.Payload.Number * 2)
	}, workqueue.Workers{N: 4})
}

// submitAndWait checks every result.
func submitAndWait(ctx context.Context, q *workqueue.Queue[thumbnail], tasks int) error {
	var ids []workqueue.TaskID
	for k := range tasks {
		id, err := q.Submit(ctx, thumbnail{k})
		if err != nil {
			return fmt.Errorf("submit task %d: %w", k, err)
		}
		ids = append(ids, id)
	}
	for k, id := range ids {
		var twice int
		r, err := q.Wait(ctx, id)
		if err == nil {
			err = r.Into(&twice)
		}
		if err != nil || r.Err != "" || twice != 2*k {
			return fmt.Errorf("task %d: result %d, %q, %v", k, twice, r.Err, err)
		}
	}
	return nil
}
