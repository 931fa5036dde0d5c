package workqueue

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/consensus"
)

// volatile is a queue whose tasks are kept by the node where they were submitted,
// their origin: one record per task until its retention has passed.
type volatile struct {
	*bench
	engine     *Engine
	last       atomic.Uint64 // number given last
	claimed    atomic.Uint64 // claim given last
	unfinished atomic.Int64
	shards     [shards]shard

	thief thief

	mu    sync.Mutex // guards lanes
	lanes map[string]*lane
}

const (
	shards     = 32
	maxCrashes = 3
)

// shard has the records of every 32nd task.
type shard struct {
	mu       sync.Mutex // guards the shard and its records
	records  map[uint64]*record
	finished []finished // oldest first
	count    [states]int
	_        [24]byte
}

type finished struct {
	number uint64
	at     time.Time
}

// record is what the origin knows of a task. Its shard's mu guards it.
type record struct {
	number  uint64
	state   state
	job     *job   // the current attempt; nil when it is finished
	lane    *lane  // away: who has it
	claim   uint64 // away: the number of that hand-over
	timer   *time.Timer
	waiters []chan Result
	result  Result
	suspect bool // an attempt was lost with its worker: it is given out alone
	crashes int  // losses when it was given out alone
}

// state is where a task is (T2).
type state uint8

const (
	isReady state = iota
	isScheduled
	isRetrying
	isRunning // on this node
	isAway    // another node has it
	isDone
	isDead
	isCancelled
	states
)

func newVolatile(e *Engine, b *bench) *volatile {
	v := &volatile{bench: b, engine: e, lanes: map[string]*lane{}}
	for i := range v.shards {
		v.shards[i].records = map[uint64]*record{}
	}
	v.thief.init(v)
	return v
}

func (v *volatile) shard(number uint64) *shard { return &v.shards[number%shards] }

// move puts a record into another state. The shard is locked.
func (s *shard) move(r *record, to state) {
	s.count[r.state]--
	s.count[to]++
	r.state = to
}

func (v *volatile) submit(ctx context.Context, specs []spec) ([]TaskID, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", consensus.ErrNoQuorum, context.Cause(ctx))
	}
	if v.engine.ctx.Err() != nil || v.engine.isDraining() {
		return nil, consensus.ErrClosed
	}
	n := int64(len(specs))
	if v.unfinished.Add(n) > int64(v.cfg.MaxReady) {
		v.unfinished.Add(-n)
		return nil, fmt.Errorf("%w: %d tasks of this node are unfinished", ErrFull, v.cfg.MaxReady)
	}
	ids := make([]TaskID, n)
	now := time.Now()
	for i := range specs {
		ids[i] = v.accept(&specs[i], now)
	}
	return ids, nil
}

// accept makes the record of a new task.
func (v *volatile) accept(s *spec, now time.Time) TaskID {
	number := v.last.Add(1)
	r := &record{number: number}
	j := &job{
		id: volatileID(v.engine.self, v.engine.start, number), number: number, attempt: 1,
		submitted: now.UnixNano(), payload: s.payload, record: r,
	}
	if !s.deadline.IsZero() {
		j.deadline = s.deadline.UnixNano()
	}
	id := j.id
	r.job = j
	sh := v.shard(number)
	sh.mu.Lock()
	sh.forget(now.Add(-v.cfg.Retention))
	sh.records[number] = r
	sh.count[isReady]++
	later := s.at.After(now)
	if later {
		v.delay(sh, r, isScheduled, s.at.Sub(now))
	}
	sh.mu.Unlock()
	if !later {
		v.place(j)
	}
	return id
}

// place puts an own job on the bench, and tells others if there are more than the
// workers here can start.
func (v *volatile) place(j *job) {
	v.own.Add(1)
	v.add(j)
	v.surplus()
}

func (v *volatile) surplus() {
	if v.engine.lifelines.count.Load() == 0 {
		return
	}
	if n := v.own.Load() - int64(v.parked.Load()); n > 0 {
		v.engine.tellOf(v.queue, v.engine.self, int(n))
	}
}

// delay keeps the record's job from the bench for a while. The shard is locked.
func (v *volatile) delay(sh *shard, r *record, as state, d time.Duration) {
	sh.move(r, as)
	j := r.job
	r.timer = time.AfterFunc(d, func() {
		sh.mu.Lock()
		due := r.job == j && r.state == as && v.engine.ctx.Err() == nil
		if due {
			sh.move(r, isReady)
		}
		sh.mu.Unlock()
		if due {
			v.place(j)
		}
	})
}

// stopTimers keeps delayed tasks from coming back after Close.
func (v *volatile) stopTimers() {
	for i := range v.shards {
		sh := &v.shards[i]
		sh.mu.Lock()
		for _, r := range sh.records {
			if r.timer != nil {
				r.timer.Stop()
			}
		}
		sh.mu.Unlock()
	}
}

func (v *volatile) begin(ctx context.Context, j *job) (context.Context, context.CancelFunc, bool) {
	late := j.deadline != 0 && time.Now().UnixNano() > j.deadline
	if j.record == nil {
		if !j.from.current(j.start) {
			return nil, nil, false // its origin started anew: nobody waits for it
		}
		if late {
			j.from.end(j, verdict{end: dead, err: textDeadline})
		}
		return ctx, func() {}, !late
	}
	v.own.Add(-1)
	sh := v.shard(j.number)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := j.record
	if r.job != j || r.state != isReady {
		return nil, nil, false // cancelled
	}
	if late {
		v.finish(sh, r, isDead, Result{State: "dead", Err: textDeadline, Attempts: int(j.attempt) - 1})
		return nil, nil, false
	}
	sh.move(r, isRunning)
	return ctx, func() {}, true
}

const textDeadline = "deadline"

func (v *volatile) end(j *job, verdict verdict) {
	if v.engine.ctx.Err() != nil {
		return // it was interrupted by Close: nobody is told
	}
	if j.record == nil {
		j.from.end(j, verdict)
		return
	}
	sh := v.shard(j.number)
	sh.mu.Lock()
	if j.record.job != j || j.record.state != isRunning {
		sh.mu.Unlock()
		return
	}
	next := v.conclude(sh, j.record, verdict, v.engine.self)
	sh.mu.Unlock()
	if next != nil {
		v.place(next)
	}
}

// release hands back what was stolen and not started.
func (v *volatile) release(j *job) { j.from.end(j, verdict{end: snooze}) }

// conclude ends the current attempt and returns the job of the next one if that is
// to start at once. It is the only place where an attempt's end counts; the caller
// has checked that it is the current one. The shard is locked.
func (v *volatile) conclude(sh *shard, r *record, d verdict, node string) *job {
	res := Result{Err: d.err, Attempts: int(r.job.attempt), Node: node}
	switch d.end {
	case done:
		res.State, res.Value = "done", d.result
		v.finish(sh, r, isDone, res)
		return nil
	case discard:
		res.State = "discarded"
		v.finish(sh, r, isDone, res)
		return nil
	case dead:
		res.State = "dead"
		v.finish(sh, r, isDead, res)
		return nil
	}
	next := *r.job
	as := isScheduled
	if d.end == retry {
		next.attempt++
		next.failed++
		as = isRetrying
		r.suspect = false // it ended by itself
	}
	if len(d.checkpoint) > 0 {
		next.checkpoint = d.checkpoint
	}
	return v.again(sh, r, &next, as, d.delay)
}

// again makes next the current job. It returns it if it is to start at once. The shard is locked.
func (v *volatile) again(sh *shard, r *record, next *job, as state, d time.Duration) *job {
	r.job, r.lane = next, nil
	if d > 0 {
		v.delay(sh, r, as, d)
		return nil
	}
	sh.move(r, isReady)
	return next
}

// finish ends the task. The shard is locked.
func (v *volatile) finish(sh *shard, r *record, as state, res Result) {
	sh.move(r, as)
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
	r.job, r.lane, r.result = nil, nil, res
	for _, w := range r.waiters {
		w <- res // has room for the one result
	}
	r.waiters = nil
	v.unfinished.Add(-1)
	now := time.Now()
	sh.finished = append(sh.finished, finished{r.number, now})
	sh.forget(now.Add(-v.cfg.Retention))
}

// forget drops finished records from before then, and the oldest of too many. The shard is locked.
func (sh *shard) forget(then time.Time) {
	n := max(0, len(sh.finished)-maxDone/shards)
	for n < len(sh.finished) && sh.finished[n].at.Before(then) {
		n++
	}
	for _, f := range sh.finished[:n] {
		sh.count[sh.records[f.number].state]--
		delete(sh.records, f.number)
	}
	sh.finished = sh.finished[n:]
}

func (v *volatile) wait(ctx context.Context, id TaskID) (Result, error) {
	node, start, number, ok := id.volatile()
	if !ok {
		return Result{}, ErrNotFound
	}
	if node != v.engine.self {
		return v.engine.waitAt(ctx, node, &waitRequest{queue: v.queue, start: start, number: number})
	}
	if start != v.engine.start {
		return Result{}, ErrNotFound
	}
	return v.waitHere(ctx, number)
}

func (v *volatile) waitHere(ctx context.Context, number uint64) (Result, error) {
	sh := v.shard(number)
	sh.mu.Lock()
	sh.forget(time.Now().Add(-v.cfg.Retention))
	r := sh.records[number]
	if r == nil {
		sh.mu.Unlock()
		return Result{}, ErrNotFound
	}
	if r.state >= isDone {
		defer sh.mu.Unlock()
		return r.result, nil
	}
	ended := make(chan Result, 1)
	r.waiters = append(r.waiters, ended)
	sh.mu.Unlock()
	select {
	case res := <-ended:
		return res, nil
	case <-ctx.Done():
		sh.mu.Lock()
		defer sh.mu.Unlock()
		r.waiters = slices.DeleteFunc(r.waiters, func(c chan Result) bool { return c == ended })
		return Result{}, context.Cause(ctx)
	case <-v.engine.ctx.Done():
		return Result{}, consensus.ErrClosed
	}
}

func (v *volatile) cancel(_ context.Context, id TaskID, reason string) error {
	node, start, number, ok := id.volatile()
	if !ok || node != v.engine.self || start != v.engine.start {
		return ErrNotFound
	}
	sh := v.shard(number)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := sh.records[number]
	if r == nil || r.state >= isDone {
		return ErrNotFound
	}
	started := int(r.job.attempt)
	if r.state != isRunning && r.state != isAway {
		started--
	}
	v.finish(sh, r, isCancelled, Result{State: "cancelled", Err: reason, Attempts: started})
	return nil
}

func (v *volatile) stats(context.Context) (s Stats, err error) {
	for i := range v.shards {
		sh := &v.shards[i]
		sh.mu.Lock()
		c := sh.count
		sh.mu.Unlock()
		s.Ready += c[isReady]
		s.Scheduled += c[isScheduled]
		s.Retry += c[isRetrying]
		s.Running += c[isRunning] + c[isAway]
		s.Dead += c[isDead]
		s.Done += c[isDone]
	}
	return s, nil
}
