package workqueue

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// thief fetches tasks for a node that has too few of its own.
//
// It asks those of whom it knows that they have some: of two chosen at random the one
// with more (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing",
// 1996). If it knows of nobody it asks two at random and its neighbours in the ring
// of names at distance 1, 2, 4 and so on. Who has nothing remembers the asker and
// tells it when work comes (Saraswat et al., "Lifeline-based Global Load Balancing",
// 2011): an idle cluster is silent, and nobody waits for a poll.
type thief struct {
	queue *volatile
	kick  chan struct{} // 1: look again

	mu      sync.Mutex // guards what follows
	running bool
	origins map[string]*origin
	probes  int           // that may still be made at random
	asks    int           // on their way, those that only settle a lost answer not counted
	wanted  int           // tasks that they ask for
	sent    chan struct{} // closed when unsent is 0; nil if nobody waits

	unsent atomic.Int64 // ends that are not reported yet, of all origins
}

const (
	askTimeout  = 2 * time.Second
	askAtOnce   = 2
	lookAhead   = 5 * time.Millisecond // of work that is fetched beyond the free workers
	minPause    = time.Millisecond     // after an empty answer; doubles up to maxPause
	maxPause    = 64 * time.Millisecond
	settleAfter = 50 * time.Millisecond // a lost answer; doubles up to a second
	renewAfter  = 10 * time.Second      // a lifeline, whose news may have been lost
	randomAsks  = 2
	maxOutbox   = 4096
)

func (t *thief) init(v *volatile) {
	t.queue, t.kick, t.probes = v, make(chan struct{}, 1), randomAsks
	t.origins = map[string]*origin{}
}

func (t *thief) wake() {
	select {
	case t.kick <- struct{}{}:
	default:
	}
}

// hungry is told that the bench runs low, or that the workers changed.
func (v *volatile) hungry() {
	t := &v.thief
	v.low.Store(int64(v.ahead(lookAhead, v.cfg.Steal.Batch) / 2))
	v.surplus()
	if v.cfg.Steal.Off || len(v.crew()) == 0 {
		return
	}
	t.mu.Lock()
	if !t.running {
		t.running = v.engine.run(t.hunt)
	}
	t.mu.Unlock()
	t.wake()
}

// origin is what a thief knows of one node that may have tasks.
type origin struct {
	name  string
	thief *thief

	mu      sync.Mutex // guards what follows
	boot    uint64     // as membership shows it
	seen    bool       // membership has shown it alive
	gone    bool       // and then dead
	start   uint64     // of its engine, by its last answer
	ask     uint64     // the last one sent
	asking  bool       // it is on its way
	fed     bool       // and meanwhile it told us that it has tasks
	seq     uint64     // the last chunk that arrived
	unclear bool       // the last ask was not answered: tasks may be on their way back there
	left    int        // tasks that it had, by its last answer
	line    time.Time  // since when it remembers us; zero: it does not
	rest    time.Time  // it is not asked before
	pause   time.Duration

	outbox  []outgoing
	sending bool
}

// at returns what we know of a node.
func (t *thief) at(name string) *origin {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.origins[name]
	if o == nil {
		o = &origin{name: name, thief: t}
		t.origins[name] = o
	}
	return o
}

func (o *origin) current(start uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.start == start && !o.gone
}

// hunt asks origins while there is room for more tasks.
func (t *thief) hunt() {
	e := t.queue.engine
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := e.peers.Changed()
		o, want, next := t.choose(time.Now())
		if o != nil {
			t.ask(o, want)
			continue
		}
		timer.Reset(next)
		select {
		case <-t.kick:
		case <-changed:
		case <-timer.C:
		case <-e.ctx.Done():
			return
		}
	}
}

// ask asks in the background: a node that does not answer keeps nobody from asking others.
func (t *thief) ask(o *origin, want int) {
	o.mu.Lock()
	o.asking, o.fed = true, false
	o.mu.Unlock()
	count := min(want, 1)
	t.mu.Lock()
	t.asks += count
	t.wanted += want
	t.mu.Unlock()
	t.queue.engine.run(func() {
		t.steal(o, want)
		t.mu.Lock()
		t.asks -= count
		t.wanted -= want
		t.mu.Unlock()
		t.wake()
	})
}

// room is how many more tasks the node wants.
func (t *thief) room() int {
	v := t.queue
	workers := len(v.crew())
	if workers == 0 || v.engine.isDraining() {
		return 0
	}
	ahead := v.ahead(lookAhead, v.cfg.Steal.Batch)
	ready := int(v.ready.Load())
	t.mu.Lock()
	ready += t.wanted
	t.mu.Unlock()
	free := workers - int(v.running.Load()) - ready
	if free <= 0 && ready > ahead/2 {
		return 0
	}
	return min(free+ahead, v.cfg.Steal.Batch)
}

// choose returns whom to ask and for how much, or how long there is nobody to ask.
func (t *thief) choose(now time.Time) (o *origin, want int, next time.Duration) {
	peers := t.peers()
	want = max(t.room(), 0)
	next = time.Hour
	var rich, poor []*origin
	for _, p := range peers {
		kind, wait := p.look(now)
		switch {
		case kind == busy:
		case wait > 0:
			if kind != content || want > 0 {
				next = min(next, wait)
			}
		case kind == unclear:
			return p, 0, 0
		case kind == wealthy:
			rich = append(rich, p)
		case kind == unknown:
			poor = append(poor, p)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if want == 0 || t.asks == askAtOnce {
		return nil, 0, next
	}
	if len(rich) > 0 {
		a, b := rich[rand.IntN(len(rich))], rich[rand.IntN(len(rich))]
		if b.tasks() > a.tasks() {
			a = b
		}
		return a, want, 0
	}
	if len(poor) > 0 && t.probes > 0 {
		t.probes--
		return poor[rand.IntN(len(poor))], want, 0
	}
	near := neighbours(peers, t.queue.engine.self)
	for _, p := range poor {
		if slices.Contains(near, p) {
			return p, want, 0
		}
	}
	return nil, 0, next
}

// peers returns the nodes that can be asked, by name.
func (t *thief) peers() []*origin {
	list := t.queue.engine.peers.List()
	all := make([]*origin, 0, len(list))
	for _, p := range list {
		if p.Alive && p.Name != t.queue.engine.self {
			all = append(all, t.at(p.Name))
		}
	}
	slices.SortFunc(all, func(a, b *origin) int { return strings.Compare(a.name, b.name) })
	return all
}

// neighbours returns those at distance 1, 2, 4, ... after self in the ring of names:
// so everybody is remembered by about as many as it remembers.
func neighbours(peers []*origin, self string) (near []*origin) {
	first, _ := slices.BinarySearchFunc(peers, self, func(p *origin, name string) int { return strings.Compare(p.name, name) })
	for d := 1; d <= len(peers); d *= 2 {
		near = append(near, peers[(first+d-1)%len(peers)])
	}
	return near
}

// standing is what an origin is worth to a thief.
type standing uint8

const (
	content standing = iota // it has nothing and will tell us
	busy                    // it is being asked
	unclear                 // an answer was lost: it must be asked before anything else
	wealthy                 // it has tasks
	unknown
)

// look returns the standing of an origin, and how long until that may be acted on.
func (o *origin) look(now time.Time) (standing, time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	wait := max(o.rest.Sub(now), 0)
	switch {
	case o.asking || len(o.outbox) > maxOutbox: // who does not hear of ends gets no more to end
		return busy, 0
	case o.unclear:
		return unclear, wait
	case o.left > 0:
		return wealthy, wait
	case !o.line.IsZero() && now.Before(o.line.Add(renewAfter)):
		return content, max(o.line.Add(renewAfter).Sub(now), 1)
	}
	return unknown, wait
}

func (o *origin) tasks() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.left
}

// steal asks an origin for tasks and puts them on the bench.
func (t *thief) steal(o *origin, want int) {
	v := t.queue
	o.mu.Lock()
	o.ask++
	m := stealRequest{queue: v.queue, ask: o.ask, ack: o.seq, want: want}
	o.mu.Unlock()
	ctx, cancel := context.WithTimeout(v.engine.ctx, askTimeout)
	raw, err := v.engine.peers.Call(ctx, o.name, methodSteal, pack(&m))
	cancel()
	var a stealAnswer
	if err == nil {
		err = unpack(raw, &a)
	}
	jobs := o.answered(&a, err, want, time.Now())
	if len(jobs) > 0 {
		t.mu.Lock()
		t.probes = randomAsks
		t.mu.Unlock()
	}
	for _, j := range jobs {
		v.addForeign(j)
	}
	if len(jobs) > 0 && a.left > 0 { // the rumour goes on to those who wait for us to have work
		v.engine.tellOf(v.queue, o.name, a.left)
	}
}

// answered takes the answer to an ask.
func (o *origin) answered(a *stealAnswer, err error, want int, now time.Time) (jobs []*job) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asking = false
	if err != nil {
		o.unclear, o.left, o.line = true, 0, time.Time{}
		o.pause = min(max(2*o.pause, settleAfter), time.Second)
		o.rest = now.Add(o.pause)
		return nil
	}
	o.start, o.seq = a.start, a.seq
	if o.unclear {
		o.unclear, o.pause = false, 0
	}
	o.left = a.left
	jobs = make([]*job, 0, len(a.tasks))
	for i := range a.tasks {
		jobs = append(jobs, o.job(&a.tasks[i], now))
	}
	switch {
	case len(jobs) > 0:
		o.pause, o.line = 0, time.Time{}
	case want > 0: // it remembers us; but let it not be asked and fed in circles
		o.left, o.line = 0, now
		if o.fed { // its news overtook its answer, and it has forgotten us again
			o.left, o.line = 1, time.Time{}
		}
		o.pause = min(max(2*o.pause, minPause), maxPause)
	}
	o.rest = now.Add(o.pause)
	return jobs
}

func (o *origin) job(p *parcel, now time.Time) *job {
	j := &job{
		id: volatileID(o.name, o.start, p.number), number: p.number, ticket: p.claim, attempt: int32(p.attempt), failed: int32(p.failed),
		submitted: int64(p.submitted), payload: p.payload, checkpoint: p.checkpoint,
		from: o, start: o.start,
	}
	if p.left > 0 {
		j.deadline = now.Add(p.left).UnixNano()
	}
	return j
}

// fed is told that there is work at an origin.
func (v *volatile) fed(name string) {
	if name == v.engine.self {
		return
	}
	o := v.thief.at(name)
	o.mu.Lock()
	o.left = max(o.left, 1)
	o.line = time.Time{}
	o.fed = true
	o.mu.Unlock()
	v.thief.wake()
}
