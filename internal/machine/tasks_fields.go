package machine

import (
	"iter"
)

// fields codes the ledger: queues, then workers, then tasks in the order of their
// places, which put themselves at the end of theirs when they are read.
func (t *tasks) fields(k *coder) {
	k.u64((*uint64)(&t.claims))
	t.limit.fields(k)
	list(k, &t.blames)
	names := sortedKeys(t.queues)
	n := k.count(len(names))
	for i := 0; i < n && k.err == nil; i++ {
		if k.reading {
			t.readQueue(k)
		} else {
			t.queues[names[i]].fields(k)
		}
	}
	ids := sortedKeys(t.owners)
	n = k.count(len(ids))
	for i := 0; i < n && k.err == nil; i++ {
		if k.reading {
			t.readOwner(k)
		} else {
			t.owners[ids[i]].fields(k)
		}
	}
	t.taskFields(k)
	t.turns(k)
}

func (l *taskLimit) fields(k *coder) {
	k.u64(&l.Pending)
	k.u64(&l.Finished)
	k.u64(&l.Kept)
	k.u64(&l.Claimed)
}

func (q *queue) fields(k *coder) {
	q.settings.fields(k)
	keys := sortedKeys(q.uniques)
	k.count(len(keys))
	for _, key := range keys {
		q.uniques[key].fields(k)
	}
}

func (t *tasks) readQueue(k *coder) {
	var s QueueSettings
	s.fields(k)
	q := t.queue(s.Queue)
	q.settings = withDefaults(s)
	n := k.count(0)
	for i := 0; i < n && k.err == nil; i++ {
		u := &unique{queue: q}
		if u.fields(k); q.uniques[u.key] != nil {
			k.fail("unique key twice")
			return
		}
		t.take(u)
	}
}

func (u *unique) fields(k *coder) {
	k.str(&u.key)
	k.u64((*uint64)(&u.id))
	k.u64(&u.until)
}

func (o *owner) fields(k *coder) {
	k.u64((*uint64)(&o.id))
	k.str(&o.node)
	k.u64(&o.boot)
	k.count(len(o.workers))
	for _, w := range o.workers {
		k.str(&w.queue.settings.Queue)
		k.u64(&w.want)
	}
}

func (t *tasks) readOwner(k *coder) {
	o := &owner{}
	k.u64((*uint64)(&o.id))
	k.str(&o.node)
	k.u64(&o.boot)
	n := k.count(0)
	for i := 0; i < n && k.err == nil; i++ {
		var name string
		k.str(&name)
		q := t.queues[name]
		if q == nil {
			k.fail("worker of no queue")
			return
		}
		k.u64(&o.worker(q).want)
	}
	t.owners[o.id] = o
}

// turns codes the rings of the hungry: whose turn it is outlives a snapshot.
func (t *tasks) turns(k *coder) {
	for _, name := range sortedKeys(t.queues) {
		q := t.queues[name]
		var ids []SessionID
		for w := q.hungry.first; w != nil; w = w.next {
			ids = append(ids, w.owner.id)
		}
		u64s(k, &ids)
		if !k.reading {
			continue
		}
		for _, id := range ids {
			w := t.worker(id, name)
			if w == nil || w.hungry {
				k.fail("turn of no worker")
				return
			}
			q.hungry.push(w)
		}
	}
}

// worker returns nil if the session is no worker of the queue.
func (t *tasks) worker(id SessionID, queue string) *worker {
	o := t.owners[id]
	if o == nil {
		return nil
	}
	if i, found := o.find(queue); found {
		return o.workers[i]
	}
	return nil
}

// all yields every task: by queue, place, and the order within the place.
func (t *tasks) all() iter.Seq[*task] {
	return func(yield func(*task) bool) {
		for l := range t.lists() {
			for x := l.first; x != nil; x = x.next {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// lists yields every list of tasks, in the order of a snapshot. What is blocked
// comes last, because a lane is known by its head.
func (t *tasks) lists() iter.Seq[*taskList] {
	return func(yield func(*taskList) bool) {
		for _, name := range sortedKeys(t.queues) {
			for _, l := range t.queues[name].lists() {
				if !yield(l) {
					return
				}
			}
		}
		for _, id := range sortedKeys(t.owners) {
			for _, w := range t.owners[id].workers {
				if !yield(&w.claims) {
					return
				}
			}
		}
		for _, name := range sortedKeys(t.queues) {
			lanes := t.queues[name].lanes
			for _, key := range sortedKeys(lanes) {
				if !yield(&lanes[key].blocked) {
					return
				}
			}
		}
	}
}

func (q *queue) lists() (all []*taskList) {
	for p := range q.ready {
		for r := range q.ready[p] {
			all = append(all, &q.ready[p][r])
		}
	}
	return append(all, &q.scheduled, &q.retrying, &q.finished)
}

// stored is a task as a snapshot has it: with names instead of pointers.
type stored struct {
	task
	extras
	queue, lane string
	session     SessionID
}

func (x *task) stored() stored {
	s := stored{task: *x, queue: x.queue.settings.Queue}
	if x.more != nil {
		s.extras = *x.more
	}
	if x.lane != nil {
		s.lane = x.lane.key
	}
	if x.owner != nil {
		s.session = x.owner.owner.id
	}
	return s
}

func (s *stored) fields(k *coder) {
	k.u64((*uint64)(&s.id))
	k.str(&s.queue)
	k.str(&s.lane)
	k.u64((*uint64)(&s.session))
	k.u64((*uint64)(&s.claim))
	k.bytes(&s.payload)
	k.i64(&s.submitted)
	k.u32(&s.attempt)
	k.u32(&s.lost)
	k.u8(&s.priority)
	k.u8((*uint8)(&s.rank))
	k.u8((*uint8)(&s.place))
	k.u8(&s.crashes)
	k.u64(&s.deadline)
	k.u64(&s.at)
	k.bytes(&s.checkpoint)
	k.bytes(&s.value)
	k.str(&s.err)
	k.str(&s.node)
}

func (t *tasks) taskFields(k *coder) {
	n := k.count(len(t.byID))
	if !k.reading {
		var one coder // each with its length in front, so that a task can gain fields
		for x := range t.all() {
			s := x.stored()
			one.b = one.b[:0]
			s.fields(&one)
			k.bytes(&one.b)
		}
		return
	}
	for i := 0; i < n && k.err == nil; i++ {
		one := coder{reading: true}
		k.bytes(&one.b)
		var s stored
		if s.fields(&one); one.err != nil {
			k.err = one.err
		} else if !t.restore(&s) {
			k.fail("task out of place")
		}
	}
	for _, q := range t.queues {
		for _, u := range q.uniques {
			if x := t.byID[u.id]; x != nil && x.queue == q && x.extra().unique == nil {
				x.more.unique = u
			} else if x != nil {
				k.fail("unique key of another task")
			}
		}
	}
}

// restore puts a task at the end of its place. It returns false if there is no such place.
func (t *tasks) restore(s *stored) bool {
	q, w := t.queues[s.queue], t.worker(s.session, s.queue)
	to := s.place
	if q == nil || to == nowhere || to >= places || s.priority >= priorities || s.rank >= ranks || t.byID[s.id] != nil || (w != nil) != (to == running) {
		return false
	}
	x := &task{id: s.id, queue: q, claim: s.claim, submitted: s.submitted, attempt: s.attempt, lost: s.lost, priority: s.priority, rank: s.rank, crashes: s.crashes}
	if len(s.payload) > 0 {
		x.payload = cloned(s.payload)
	}
	if s.deadline != 0 || s.at != 0 || len(s.checkpoint) > 0 || len(s.value) > 0 || s.err != "" || s.node != "" || to >= done {
		more := s.extras
		more.checkpoint, more.value = cloned(more.checkpoint), cloned(more.value)
		x.more = &more
	}
	if !t.relane(x, s.lane, to) {
		return false
	}
	t.byID[x.id] = x
	t.move(x, to, w)
	switch {
	case to >= done:
		q.kept += x.keeps()
		return true
	case to == running:
		w.bytes += x.weight()
		if x.rank == suspects {
			w.owner.suspects++
		}
	}
	q.pending += uint64(len(x.payload))
	return true
}

// relane ties a task that is read to its lane. Of a dead one only the key is kept.
func (t *tasks) relane(x *task, key string, to place) bool {
	switch {
	case key == "":
		return to != blocked
	case to >= done:
		x.lane = &lane{key: key}
		return true
	}
	head := x.queue.lane(key).join(x)
	return head == (to != blocked)
}
