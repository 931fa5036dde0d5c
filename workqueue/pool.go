package workqueue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/internal/deque"
	"github.com/clatter-go/clatter/internal/wire"
)

// pool is the workers of one Handle call.
type pool struct {
	bench    *bench
	run      func(ctx context.Context, j *job) verdict
	ctx      context.Context // of the handlers
	stopping chan struct{}   // closed: nothing more is started
	work     sync.WaitGroup
}

func (p *pool) stopped() bool {
	select {
	case <-p.stopping:
		return true
	default:
		return false
	}
}

// serve runs workers until ctx ends or the engine stops, hands back what was not
// started, and returns when the handlers have returned.
func (b *bench) serve(ctx context.Context, e *Engine, w Workers, run func(ctx context.Context, j *job) verdict) error {
	handlers, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	p := &pool{bench: b, run: run, ctx: handlers, stopping: make(chan struct{})}
	if !e.enter() {
		return fmt.Errorf("handle %q: %w", b.queue, consensus.ErrClosed)
	}
	defer e.leave()
	crew := make([]*worker, w.N)
	for i := range crew {
		crew[i] = &worker{bench: b, pool: p, ring: deque.New[*job](ringSize, 0), wakeup: make(chan struct{}, 1)}
	}
	b.mu.Lock()
	all := slices.Concat(b.crew(), crew)
	b.workers.Store(&all)
	b.mu.Unlock()
	for _, worker := range crew {
		p.start(worker)
	}
	b.keeper.hungry()

	var err error
	select {
	case <-ctx.Done():
	case <-e.draining:
		err = fmt.Errorf("handle %q: %w", b.queue, consensus.ErrClosed)
	case <-e.ctx.Done():
		err = fmt.Errorf("handle %q: %w", b.queue, consensus.ErrClosed)
	}
	close(p.stopping)
	b.dismiss(p)
	patience := time.AfterFunc(w.Drain, func() { end(ErrDraining) })
	defer patience.Stop()
	defer context.AfterFunc(e.ctx, func() { end(consensus.ErrClosed) })()
	p.work.Wait()
	return err
}

// dismiss takes the pool's workers off the bench, and with the last of them hands
// back what is ready.
func (b *bench) dismiss(p *pool) {
	b.mu.Lock()
	crew := b.crew()
	all := make([]*worker, 0, len(crew))
	for _, w := range crew {
		if w.pool != p {
			all = append(all, w)
		}
	}
	b.workers.Store(&all)
	b.mu.Unlock()
	buf := make([]*job, ringSize)
	for _, w := range crew { // a worker in its handler does not look at its ring for long
		for n, again := 1, false; w.pool == p && (n > 0 || again); {
			n, again = w.ring.Steal(buf)
			for _, j := range buf[:n] {
				b.inbox.push(j)
			}
		}
	}
	b.wake()
	b.keeper.hungry()
	if len(all) == 0 {
		b.unload()
	}
}

// unload hands back every ready job that was given to this node.
func (b *bench) unload() {
	var all []*job
	for buf := make([]*job, refill); ; {
		n := b.pull(buf)
		if all = append(all, buf[:n]...); n == 0 {
			break
		}
	}
	b.handBack(all)
}

func (p *pool) start(w *worker) { p.work.Go(w.loop) }

func (w *worker) loop() {
	defer w.ended()
	for j := w.next(); j != nil; j = w.next() {
		w.current = j
		w.attempt(j)
		w.current = nil
	}
	w.finished = true
}

// ended puts back what the ring has. A handler that called runtime.Goexit has ended
// the loop: its attempt failed, and another goroutine takes the worker's place.
func (w *worker) ended() {
	if w.finished {
		for j, ok := w.ring.Shift(); ok; j, ok = w.ring.Shift() {
			w.bench.inbox.push(j)
		}
		if len(w.bench.crew()) == 0 {
			w.bench.unload()
		}
		w.bench.wake()
		return
	}
	w.bench.running.Add(-1)
	w.began.Store(0)
	j := w.current
	w.current = nil
	w.bench.keeper.end(j, judge(w.pool.ctx, w.bench.cfg, j, errGoexit))
	w.pool.start(w)
}

var errGoexit = errors.New("handler ended its goroutine")

// attempt runs the handler once.
func (w *worker) attempt(j *job) {
	b := w.bench
	ctx, cancel, ok := b.keeper.begin(w.pool.ctx, j)
	if !ok {
		return
	}
	defer cancel()
	b.running.Add(1)
	started := time.Now()
	w.began.Store(started.UnixNano())
	v := w.pool.run(ctx, j)
	b.observe(time.Since(started))
	w.began.Store(0)
	b.running.Add(-1)
	b.keeper.end(j, v)
	if b.ready.Load() <= b.low.Load() {
		b.keeper.hungry()
	}
}

// run makes a typed handler one that runs jobs.
func (q *Queue[T]) run(h Handler[T]) func(ctx context.Context, j *job) verdict {
	return func(ctx context.Context, j *job) verdict {
		if q.cfg.Timeout > 0 {
			limited, cancel := context.WithTimeoutCause(ctx, q.cfg.Timeout, ErrTimeout)
			defer cancel()
			ctx = limited
		}
		t := &Task[T]{
			ID: j.id, Attempt: int(j.attempt), Claim: lock.Token(j.claim), OrderKey: j.orderKey,
			Stolen: j.from != nil, Submitted: time.Unix(0, j.submitted), resumed: j.checkpoint, checkpoint: j.checkpoint,
		}
		err := wire.Unmarshal(j.payload, &t.Payload)
		if err == nil {
			err = q.call(ctx, h, t)
		}
		if err == nil {
			return verdict{end: done, result: t.result}
		}
		v := judge(ctx, q.cfg, j, err)
		v.checkpoint = t.checkpoint
		return v
	}
}

// judge says what follows from an error of a handler.
func judge(ctx context.Context, cfg Config, j *job, err error) verdict {
	v := verdict{end: retry, err: clip(err.Error(), maxText)}
	told, ok := errors.AsType[*outcome](err)
	switch {
	case ok && told.end != retry:
		v.end, v.delay = told.end, max(told.delay, 0)
		return v
	case context.Cause(ctx) == ErrDraining: // the task is not to pay for our leaving
		return v
	case int(j.failed)+1 >= cfg.MaxAttempts:
		v.end = dead
	case ok:
		v.delay = max(told.delay, 0)
	default:
		v.delay = max(backoff(cfg, int(j.failed)+1, err), 0)
	}
	return v
}

// backoff asks the user's function, which must not harm the worker either.
func backoff(cfg Config, attempt int, err error) (d time.Duration) {
	defer func() {
		if recover() != nil {
			d = fullJitter(attempt, err)
		}
	}()
	return cfg.Backoff(attempt, err)
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// call turns a panic into an error: it must not harm the host.
func (q *Queue[T]) call(ctx context.Context, h Handler[T], t *Task[T]) (err error) {
	defer func() {
		if p := recover(); p != nil {
			q.engine.log.Warn("a handler panicked", "queue", q.name, "task", t.ID, "attempt", t.Attempt, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	return h(ctx, t)
}
