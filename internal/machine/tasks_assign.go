package machine

import (
	"slices"
	"strings"
)

// owner is a session that works, or is ready to.
type owner struct {
	id       SessionID
	node     string
	boot     uint64
	suspects int       // among its claims, of all queues: 0 or 1
	workers  []*worker // one for each queue, by name
	gone     bool      // its session has ended
}

// worker is a session at one queue.
type worker struct {
	owner      *owner
	queue      *queue
	want       uint64
	bytes      uint64   // weight of its claims
	claims     taskList // in the order of their claims
	untold     *task    // the first of its claims that it was not told of
	prev, next *worker  // in the ring of the hungry
	hungry     bool
}

// weight is about what a task takes in an Assignment. It does not change while the task runs.
func (x *task) weight() uint64 {
	n := taskWeight + len(x.payload)
	if x.lane != nil {
		n += len(x.lane.key)
	}
	if x.more != nil {
		n += len(x.more.checkpoint)
	}
	return uint64(n)
}

// wish sets how many tasks a session is ready to be given.
func (t *tasks) wish(_ *apply, s *session, c *Want) Result {
	if why := checkName(c.Queue); why != "" {
		return invalid("queue " + why)
	}
	o := t.owners[s.id]
	if o == nil {
		o = &owner{id: s.id, node: s.opening.node, boot: s.opening.boot}
		t.owners[s.id] = o
	}
	w := o.worker(t.queue(c.Queue))
	w.want = c.N
	t.feed(w)
	return Result{}
}

func (o *owner) find(queue string) (int, bool) {
	return slices.BinarySearchFunc(o.workers, queue, func(w *worker, name string) int {
		return strings.Compare(w.queue.settings.Queue, name)
	})
}

func (o *owner) worker(q *queue) *worker {
	i, found := o.find(q.settings.Queue)
	if !found {
		o.workers = slices.Insert(o.workers, i, &worker{owner: o, queue: q})
	}
	return o.workers[i]
}

// feed puts a worker into the ring if it is hungry, takes it out if it is not, and
// drops the record of one that neither has nor wants anything.
func (t *tasks) feed(w *worker) {
	if w.owner.gone {
		return
	}
	hungry := w.want > 0 && w.bytes < t.limit.Claimed
	switch {
	case hungry && !w.hungry:
		w.queue.hungry.push(w)
	case !hungry && w.hungry:
		w.queue.hungry.remove(w)
	}
	t.touch(w.queue)
	if w.want > 0 || w.claims.first != nil {
		return
	}
	o := w.owner
	if i, found := o.find(w.queue.settings.Queue); found {
		o.workers = slices.Delete(o.workers, i, i+1)
	}
	if len(o.workers) == 0 {
		delete(t.owners, o.id)
	}
}

// touch notes that something may have become assignable in a queue.
func (t *tasks) touch(q *queue) {
	if !q.dirty {
		q.dirty = true
		t.dirty = append(t.dirty, q)
	}
}

// settle assigns what can be assigned and tells each session once. It is called
// when a command is through, so that no task goes to a session that the same
// command ends.
func (t *tasks) settle(a *apply) {
	for _, q := range t.dirty {
		q.dirty = false
		t.assign(a, q)
	}
	for _, w := range t.given {
		t.tell(a, w)
	}
	clear(t.dirty)
	clear(t.given)
	t.dirty, t.given = t.dirty[:0], t.given[:0]
}

// assign gives the ready tasks of a queue to its hungry workers in turn, one each
// time, so that the load spreads.
func (t *tasks) assign(a *apply, q *queue) {
	refused := false // all hungry sessions have a suspect: none will be free before the end of this
	for q.hungry.first != nil && (q.settings.MaxRunning == 0 || q.count[running] < q.settings.MaxRunning) {
		x, w := q.match(&refused)
		if x == nil {
			return
		}
		t.claim(a, x, w)
	}
}

// match returns the first task that may be started and whose turn it is.
func (q *queue) match(refused *bool) (*task, *worker) {
	for p := priorities - 1; p >= 0; p-- {
		lines := &q.ready[p]
		if x := lines[suspects].first; x != nil && !*refused {
			if w := q.unsuspicious(); w != nil {
				return x, w
			}
			*refused = true
		}
		for r := returned; r < ranks; r++ {
			if x := lines[r].first; x != nil {
				return x, q.hungry.first
			}
		}
	}
	return nil, nil
}

// unsuspicious returns the first hungry worker whose session has no suspect.
func (q *queue) unsuspicious() *worker {
	w := q.hungry.first
	for w != nil && w.owner.suspects > 0 {
		w = w.next
	}
	return w
}

// claim makes w the one that works on x. It is the only place where a claim begins (T1).
func (t *tasks) claim(a *apply, x *task, w *worker) {
	t.claims = Token(a.m.follow(uint64(t.claims)))
	x.claim = t.claims
	x.attempt++
	t.move(x, running, w)
	w.want--
	w.bytes += x.weight()
	if x.rank == suspects {
		w.owner.suspects++
	}
	if w.untold == nil {
		w.untold = x
		t.given = append(t.given, w)
	}
	w.queue.hungry.remove(w)
	if w.want > 0 && w.bytes < t.limit.Claimed {
		w.queue.hungry.push(w)
	}
}

// leave takes a task's weight from its worker, which may be hungry again.
func (t *tasks) leave(x *task) {
	w := x.owner
	t.touch(x.queue) // its place among the running is free
	x.extra().node = w.owner.node
	w.bytes -= x.weight()
	if x.rank == suspects {
		w.owner.suspects--
		for _, other := range w.owner.workers {
			t.touch(other.queue)
		}
	}
	t.feed(w)
}

// tell sends a worker what it was given since it was told last.
func (t *tasks) tell(a *apply, w *worker) {
	s := t.sessions.open(w.owner.id)
	size := 64
	t.batch = t.batch[:0]
	for x := w.untold; x != nil; x = x.next {
		t.batch = append(t.batch, x.assigned())
		size += int(x.weight())
	}
	w.untold = nil
	s.assigned += uint64(len(t.batch))
	all := Assignment{Queue: w.queue.settings.Queue, Tasks: t.batch, Want: w.want, Total: s.assigned}
	a.tell(Event{Kind: EventAssigned, Session: s.id, N: s.assigned, Name: all.Queue, Body: Append(make([]byte, 0, size), &all)})
	clear(t.batch)
}

func (x *task) assigned() Assigned {
	g := Assigned{ID: x.id, Claim: x.claim, Attempt: uint64(x.attempt), Priority: x.priority, Submitted: x.submitted, Payload: x.payload, Lost: uint64(x.lost)}
	if x.lane != nil {
		g.OrderKey = x.lane.key
	}
	if x.more != nil {
		g.Deadline, g.Checkpoint = x.more.deadline, x.more.checkpoint
	}
	return g
}
