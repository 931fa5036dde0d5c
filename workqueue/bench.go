package workqueue

import (
	"bytes"
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/internal/deque"
	"github.com/clatter-go/clatter/internal/machine"
)

// job is one attempt of a task on the node that runs it, or may.
type job struct {
	id         TaskID
	number     uint64 // in the ledger, or at the origin
	claim      machine.Token
	attempt    int32
	failed     int32 // attempts that failed before
	orderKey   string
	submitted  int64 // Unix ns
	deadline   int64 // Unix ns; 0 is none
	payload    []byte
	checkpoint []byte

	hand   *hand   // durable: the claims it belongs to
	record *record // volatile: our own task
	from   *origin // volatile: whose task it is; nil is our own
	start  uint64  // volatile: of the origin's engine
	ticket uint64  // volatile: the number of its hand-over
}

// ending says how an attempt ended.
type ending uint8

const (
	done    = ending(machine.EndDone)
	retry   = ending(machine.EndRetry)
	dead    = ending(machine.EndDead)
	discard = ending(machine.EndDiscard)
	snooze  = ending(machine.EndRelease) // also: handed back unstarted
)

func (e ending) String() string {
	return [...]string{done: "done", retry: "retry", dead: "dead", discard: "discarded", snooze: "snoozed"}[e]
}

// verdict is the end of one attempt.
type verdict struct {
	end        ending
	delay      time.Duration // before the next attempt
	err        string
	result     []byte
	checkpoint []byte
}

// cloned returns a verdict that does not alias a message.
func (v verdict) cloned() verdict {
	v.result, v.checkpoint = bytes.Clone(v.result), bytes.Clone(v.checkpoint)
	return v
}

// keeper keeps the records of a queue's tasks: the ledger, or the node where they
// were submitted.
type keeper interface {
	submit(ctx context.Context, specs []spec) ([]TaskID, error)
	wait(ctx context.Context, id TaskID) (Result, error)
	cancel(ctx context.Context, id TaskID, reason string) error
	stats(ctx context.Context) (Stats, error)
	// begin says whether the job may still start, and returns the ctx of its handler.
	begin(ctx context.Context, j *job) (context.Context, context.CancelFunc, bool)
	// end reports an attempt. It does not block.
	end(j *job, v verdict)
	// release hands back what was not started. It does not block.
	release(j *job)
	// hungry is told that the bench runs low, or that its workers changed. It does not block.
	hungry()
}

// bench has the jobs of one queue that are ready on this node, and the workers who
// run them. Jobs come in through the inbox; a worker moves some to its ring, from
// which idle workers steal.
//
// Who finds nothing parks. Who adds a job wakes one worker, unless one is searching
// already; who finds a job while it searches wakes the next. Adding counts the job
// before it looks for parked workers, and parking is announced before the count is
// looked at: one of the two sees the other.
type bench struct {
	queue  string
	cfg    Config
	keeper keeper
	inbox  inbox

	ready     atomic.Int64 // jobs in the inbox and the rings, or about to be
	own       atomic.Int64 // those of them whose records are here; the others were given to this node
	parked    atomic.Int32
	searching atomic.Int32
	running   atomic.Int32
	service   atomic.Int64              // mean ns of an attempt; 0 is not measured yet
	low       atomic.Int64              // with as few ready jobs the keeper is told
	workers   atomic.Pointer[[]*worker] // replaced as a whole, under mu

	mu   sync.Mutex // guards idle, and who replaces workers
	idle []*worker

	shedder  *time.Timer // calls shed
	watching atomic.Bool // shed will be called
}

func newBench(queue string, cfg Config) *bench {
	b := &bench{queue: queue, cfg: cfg}
	b.inbox.init()
	b.workers.Store(new([]*worker))
	b.shedder = time.AfterFunc(time.Hour, b.shed)
	b.shedder.Stop()
	return b
}

func (b *bench) crew() []*worker { return *b.workers.Load() }

func (b *bench) add(j *job) {
	b.ready.Add(1)
	b.inbox.push(j)
	b.wake()
}

// addForeign adds what was given to this node, or hands it back if nobody works here any more.
func (b *bench) addForeign(j *job) {
	b.add(j)
	if len(b.crew()) == 0 {
		b.unload()
	}
	b.watch()
}

const (
	shedAfter  = 250 * time.Millisecond
	targetTime = 50 * time.Millisecond // of work is worth keeping ahead
	targetMax  = 512
)

// watch sees to it that shed looks at what waits here.
func (b *bench) watch() {
	if !b.watching.Load() && b.ready.Load() > 0 && b.watching.CompareAndSwap(false, true) {
		b.shedder.Reset(shedAfter)
	}
}

// shed hands back what was taken when tasks were short, and now waits behind long ones.
func (b *bench) shed() {
	ready := b.ready.Load()
	surplus := min(ready-int64(b.target())+int64(b.running.Load()), ready-b.own.Load())
	for buf := make([]*job, refill); surplus > 0; {
		n := b.pull(buf[:min(int64(len(buf)), surplus)])
		b.handBack(buf[:n])
		if surplus -= int64(n); n == 0 {
			break
		}
	}
	b.watching.Store(false)
	b.watch()
}

// target is how many jobs the node wants to have, running ones included.
func (b *bench) target() int { return max(len(b.crew()), b.ahead(targetTime, targetMax)) }

// handBack releases the jobs that were given to this node, and adds its own again.
func (b *bench) handBack(jobs []*job) {
	for _, j := range jobs {
		if j.record != nil {
			b.add(j)
			continue
		}
		b.keeper.release(j)
	}
}

// wake wakes a parked worker if nobody is looking for work.
func (b *bench) wake() {
	if b.parked.Load() == 0 || b.searching.Load() != 0 || !b.searching.CompareAndSwap(0, 1) {
		return
	}
	b.mu.Lock()
	var w *worker
	if n := len(b.idle); n > 0 {
		w = b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.parked.Add(-1)
	}
	b.mu.Unlock()
	if w == nil {
		b.searching.Add(-1)
		return
	}
	w.wakeup <- struct{}{} // has room: only who was idle is woken, and once
}

// unpark takes w off the idle list; false: somebody has, and wakes it.
func (b *bench) unpark(w *worker) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(b.idle, w)
	if i < 0 {
		return false
	}
	b.idle = slices.Delete(b.idle, i, i+1)
	b.parked.Add(-1)
	return true
}

// pull takes up to len(buf) ready jobs, from the inbox and then from the rings.
func (b *bench) pull(buf []*job) int {
	n := 0
	for ; n < len(buf); n++ {
		j := b.inbox.take()
		if j == nil {
			break
		}
		buf[n] = j
	}
	for _, w := range b.crew() {
		for n < len(buf) {
			k, again := w.ring.Steal(buf[n:])
			if n += k; k == 0 && !again {
				break
			}
		}
	}
	b.ready.Add(-int64(n))
	return n
}

// observe measures the service time: a mean over about the last 16 attempts.
func (b *bench) observe(d time.Duration) {
	old := b.service.Load()
	mean := old + (int64(d)-old)/16
	if old == 0 {
		mean = int64(d)
	}
	b.service.Store(max(mean, 1)) // a lost race loses one measurement
}

// ahead is how many jobs the workers finish within d: the measure of prefetching.
func (b *bench) ahead(d time.Duration, limit int) int {
	mean := b.service.Load()
	if mean == 0 {
		return 0
	}
	crew := b.crew()
	if int(b.running.Load()) >= len(crew) { // what runs now may be longer than what has run
		mean = max(mean, youngest(crew))
	}
	return int(min(int64(len(crew))*int64(d)/mean, int64(limit)))
}

// youngest returns for how long the attempt that began last has been running.
func youngest(crew []*worker) int64 {
	last := int64(0)
	for _, w := range crew {
		began := w.began.Load()
		if began == 0 {
			return 0
		}
		last = max(last, began)
	}
	return time.Now().UnixNano() - last // a rough measure: a step of the clock does no harm
}

const (
	ringSize = 256
	refill   = 64 // most jobs moved from the inbox at once
)

// worker runs one job at a time.
type worker struct {
	bench    *bench
	pool     *pool
	ring     *deque.Ring[*job]
	wakeup   chan struct{} // 1: token of whoever took it off the idle list
	loot     [ringSize / 2]*job
	finished bool // its loop returned
	current  *job
	began    atomic.Int64 // the running attempt, Unix ns; 0 while there is none
}

// next returns the job to run, or nil when the pool stops.
func (w *worker) next() *job {
	b := w.bench
	for looking := false; ; {
		if w.pool.stopped() {
			if looking {
				b.searching.Add(-1)
				b.wake()
			}
			return nil
		}
		if j := w.take(); j != nil {
			if w.pool.stopped() {
				b.inbox.push(j)
				continue
			}
			b.ready.Add(-1)
			if looking && b.searching.Add(-1) == 0 && b.ready.Load() > 0 {
				b.wake()
			}
			return j
		}
		if !looking {
			b.searching.Add(1)
			looking = true
			continue
		}
		looking = w.park()
	}
}

// park waits until there may be work; true: and counts as searching.
func (w *worker) park() bool {
	b := w.bench
	b.mu.Lock()
	b.idle = append(b.idle, w)
	b.parked.Add(1)
	b.mu.Unlock()
	b.searching.Add(-1)
	b.keeper.hungry()
	if b.ready.Load() > 0 && b.unpark(w) { // it came in between, or is being moved
		b.searching.Add(1)
		runtime.Gosched()
		return true
	}
	select {
	case <-w.wakeup:
		return true
	case <-w.pool.stopping:
		if b.unpark(w) {
			return false
		}
		<-w.wakeup // on its way
		return true
	}
}

func (w *worker) take() *job {
	if j, ok := w.ring.Shift(); ok {
		return j
	}
	first := w.bench.inbox.take()
	if first == nil {
		return w.steal()
	}
	share := min(w.bench.ready.Load()/int64(max(1, len(w.bench.crew()))), refill)
	for range share - 1 {
		j := w.bench.inbox.take()
		if j == nil {
			break
		}
		w.keep(j)
	}
	return first
}

// keep puts j in the ring, or where anybody finds it.
func (w *worker) keep(j *job) {
	if !w.ring.Push(j) {
		w.bench.inbox.push(j)
	}
}

// steal takes half of another worker's ring.
func (w *worker) steal() *job {
	crew := w.bench.crew()
	if len(crew) == 0 {
		return nil
	}
	from := rand.IntN(len(crew))
	for i := range crew {
		victim := crew[(from+i)%len(crew)]
		if victim == w {
			continue
		}
		n, again := victim.ring.Steal(w.loot[:])
		for again {
			n, again = victim.ring.Steal(w.loot[:])
		}
		if n == 0 {
			continue
		}
		for _, j := range w.loot[1:n] {
			w.keep(j)
		}
		first := w.loot[0]
		clear(w.loot[:n])
		return first
	}
	return nil
}
