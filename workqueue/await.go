package workqueue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// awaited shares one watch of the queue's finished tasks among all who wait on this
// node. It runs while somebody waits, and lingers a little; results that it has seen
// are kept meanwhile, for those who wait for one task after the other.
type awaited struct {
	durable *durable

	mu      sync.Mutex // guards what follows
	waiters map[machine.TaskID][]chan Result
	count   int
	view    *view // nil: no watch runs
	recent  map[machine.TaskID]Result
	order   []machine.TaskID // of recent, oldest first
	linger  *time.Timer      // calls rest
}

// view is a stretch of the watch without a gap: after synced no end is missed until broken.
type view struct {
	synced, broken chan struct{}
	stop           context.CancelFunc
}

const (
	maxRecent  = 4096
	lingerTime = time.Second
)

func (a *awaited) init(d *durable) {
	a.durable = d
	a.waiters = map[machine.TaskID][]chan Result{}
	a.recent = map[machine.TaskID]Result{}
	a.linger = time.AfterFunc(time.Hour, a.rest)
	a.linger.Stop()
}

func (d *durable) wait(ctx context.Context, id TaskID) (Result, error) {
	n, ok := id.durable()
	if !ok {
		return Result{}, ErrNotFound
	}
	a := &d.awaited
	ended := make(chan Result, 1)
	v := a.enter(n, ended)
	defer a.exit(n, ended)
	for v != nil {
		select {
		case r := <-ended:
			return r, nil
		case <-v.broken:
			v = a.now()
			continue
		case <-v.synced:
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
		r, finished, err := a.ask(ctx, n)
		if finished || err != nil {
			return r, err
		}
		select {
		case r := <-ended:
			return r, nil
		case <-v.broken:
			v = a.now()
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
	}
	return Result{}, consensus.ErrClosed
}

// ask reads the task.
func (a *awaited) ask(ctx context.Context, id machine.TaskID) (r Result, finished bool, err error) {
	res, err := a.durable.engine.ledger.Query(ctx, &machine.Query{Kind: machine.QueryTask, N: uint64(id)})
	if err == nil {
		err = refused(res)
	}
	var t machine.TaskResult
	if err == nil {
		err = machine.Decode(res.Body, &t)
	}
	if err != nil {
		return r, false, err
	}
	switch t.State {
	case "done", "dead", "discarded", "cancelled":
		return result(&t), true, nil
	}
	return r, false, nil
}

func result(t *machine.TaskResult) Result {
	return Result{State: t.State, Value: slices.Clone(t.Value), Err: t.Err, Attempts: int(t.Attempts), Node: t.Node}
}

// enter registers a waiter and sees to it that the watch runs. nil: the engine is closed.
func (a *awaited) enter(id machine.TaskID, ended chan Result) *view {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.count++
	a.waiters[id] = append(a.waiters[id], ended)
	if r, ok := a.recent[id]; ok {
		ended <- r
	}
	if a.view == nil {
		ctx, stop := context.WithCancel(a.durable.engine.ctx)
		a.view = &view{synced: make(chan struct{}), broken: make(chan struct{}), stop: stop}
		if !a.durable.engine.run(func() { a.follow(ctx) }) {
			a.view = nil
			stop()
		}
	}
	return a.view
}

func (a *awaited) now() *view {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.view
}

func (a *awaited) exit(id machine.TaskID, ended chan Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiters[id] = slices.DeleteFunc(a.waiters[id], func(c chan Result) bool { return c == ended })
	if len(a.waiters[id]) == 0 {
		delete(a.waiters, id)
	}
	if a.count--; a.count == 0 {
		a.linger.Reset(lingerTime)
	}
}

// rest ends the watch if nobody waits.
func (a *awaited) rest() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.count == 0 && a.view != nil {
		a.view.stop()
		a.view = nil
		clear(a.recent)
		a.order = nil
	}
}

// follow watches until nobody waits or the engine ends. A watch that breaks may
// have missed ends: who waits reads its task again.
func (a *awaited) follow(ctx context.Context) {
	e := a.durable.engine
	for pause := 10 * time.Millisecond; ; {
		var broke error
		for ev, err := range e.ledger.Watch(ctx, machine.TopicTasks, a.durable.queue, 0) {
			if broke = err; err != nil {
				break
			}
			a.see(ctx, ev)
			pause = 10 * time.Millisecond
		}
		if !a.renew(ctx) {
			return
		}
		e.log.Debug("the watch of finished tasks starts anew", "queue", a.durable.queue, "err", broke)
		if !e.sleep(pause) {
			a.renew(e.ctx)
			return
		}
		pause = min(2*pause, time.Second)
	}
}

// renew breaks the view and, unless the watch is over, begins the next one.
func (a *awaited) renew(ctx context.Context) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	over := ctx.Err() != nil
	if a.view == nil || over && a.durable.engine.ctx.Err() == nil {
		return false // at rest; a new watch may run already
	}
	close(a.view.broken)
	if over {
		a.view = nil
		return false
	}
	a.view = &view{synced: make(chan struct{}), broken: make(chan struct{}), stop: a.view.stop}
	return true
}

// see takes one event of the watch.
func (a *awaited) see(ctx context.Context, ev machine.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil || a.view == nil {
		return
	}
	if ev.Kind == 0 {
		select {
		case <-a.view.synced: // a further mark of progress
		default:
			close(a.view.synced)
		}
		return
	}
	var t machine.TaskResult
	if ev.Kind != machine.EventTask || machine.Decode(ev.Body, &t) != nil {
		return
	}
	r := result(&t)
	if _, known := a.recent[t.ID]; !known {
		a.order = append(a.order, t.ID)
	}
	a.recent[t.ID] = r
	if len(a.order) > maxRecent {
		delete(a.recent, a.order[0])
		a.order = a.order[1:]
	}
	for _, c := range a.waiters[t.ID] {
		select {
		case c <- r:
		default: // has it
		}
	}
}
