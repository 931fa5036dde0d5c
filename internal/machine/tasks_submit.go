package machine

import "fmt"

// queue returns the queue of a name; the first use makes it.
func (t *tasks) queue(name string) *queue {
	q := t.queues[name]
	if q == nil {
		q = &queue{lanes: map[string]*lane{}, uniques: map[string]*unique{}}
		q.settings = withDefaults(QueueSettings{Queue: name})
		t.queues[name] = q
	}
	return q
}

func withDefaults(s QueueSettings) QueueSettings {
	if s.MaxReady == 0 {
		s.MaxReady = defaultReady
	}
	if s.Retention == 0 {
		s.Retention = defaultRetention
	}
	if s.MaxCrashes == 0 {
		s.MaxCrashes = defaultCrashes
	}
	s.MaxCrashes = min(s.MaxCrashes, 255)
	return s
}

// set changes the settings of a queue. They bind from now on: nothing that is in
// the queue already is turned away.
func (t *tasks) set(_ *apply, _ *session, c *QueueSettings) Result {
	if why := checkName(c.Queue); why != "" {
		return invalid("queue " + why)
	}
	q := t.queue(c.Queue)
	q.settings = withDefaults(*c)
	if x := q.finished.first; x != nil {
		t.setAlarm(x)
	}
	t.touch(q)
	return Result{}
}

// submit takes all tasks of the command or none of them.
func (t *tasks) submit(a *apply, _ *session, c *Submit) Result {
	if why := c.wrong(); why != "" {
		return invalid(why)
	}
	q := t.queue(c.Queue)
	if full := q.lacks(c, t.limit.Pending); full != 0 {
		return Result{Code: Full, N: full}
	}
	answer := SubmitAnswer{IDs: make([]TaskID, len(c.Tasks))}
	for i := range c.Tasks {
		spec := &c.Tasks[i]
		if u := q.uniques[spec.Unique]; u != nil {
			answer.IDs[i] = u.id
			answer.Duplicates = append(answer.Duplicates, uint64(i))
			continue
		}
		answer.IDs[i] = t.add(a, q, spec).id
	}
	t.touch(q)
	return Result{Body: Encode(&answer)}
}

// wrong says what is wrong with a submit, whatever the state is.
func (c *Submit) wrong() string {
	if why := checkName(c.Queue); why != "" {
		return "queue " + why
	}
	for i := range c.Tasks {
		s := &c.Tasks[i]
		switch {
		case len(s.Payload) > maxPayload:
			return fmt.Sprintf("task %d: a payload has at most %d bytes, not %d", i, maxPayload, len(s.Payload))
		case s.Priority >= priorities:
			return fmt.Sprintf("task %d: priority %d is above %d", i, s.Priority, priorities-1)
		case len(s.OrderKey) > maxOrderKey || len(s.Unique) > maxOrderKey:
			return fmt.Sprintf("task %d: order and unique keys have at most %d bytes", i, maxOrderKey)
		}
	}
	return ""
}

// lacks returns the bound that the submit would break, or 0.
func (q *queue) lacks(c *Submit, mostBytes uint64) uint64 {
	var n, bytes uint64
	var seen map[string]bool
	for i := range c.Tasks {
		if key := c.Tasks[i].Unique; key != "" {
			if seen[key] || q.uniques[key] != nil {
				continue
			}
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[key] = true
		}
		n++
		bytes += uint64(len(c.Tasks[i].Payload))
	}
	unstarted := q.count[ready] + q.count[blocked] + q.count[scheduled] + q.count[retrying]
	switch {
	case n > 0 && unstarted+n > q.settings.MaxReady:
		return q.settings.MaxReady
	case n > 0 && q.pending+bytes > mostBytes:
		return mostBytes
	}
	return 0
}

func (t *tasks) add(a *apply, q *queue, spec *TaskSpec) *task {
	x := &task{id: TaskID(a.m.mint()), queue: q, payload: cloned(spec.Payload), submitted: a.wall, priority: spec.Priority, rank: fresh}
	t.byID[x.id] = x
	q.pending += uint64(len(x.payload))
	if spec.Delay != 0 {
		x.extra().at = later(a.clock, spec.Delay)
	}
	if spec.Deadline != 0 {
		x.extra().deadline = later(a.clock, spec.Deadline)
	}
	if spec.Unique != "" {
		u := &unique{queue: q, key: spec.Unique, id: x.id}
		if spec.Window != 0 {
			u.until = later(a.clock, spec.Window)
		}
		x.extra().unique = u
		t.take(u)
	}
	if spec.OrderKey != "" && !q.lane(spec.OrderKey).join(x) {
		t.move(x, blocked, nil)
		return x
	}
	t.enter(a, x, scheduled)
	return x
}

// enter puts an unfinished task in line, or at first where it is delayed.
func (t *tasks) enter(a *apply, x *task, delayed place) {
	to := ready
	if x.more != nil && x.more.at > a.clock {
		to = delayed
	}
	t.move(x, to, nil)
	t.touch(x.queue)
}

func (q *queue) lane(key string) *lane {
	l := q.lanes[key]
	if l == nil {
		l = &lane{key: key}
		q.lanes[key] = l
	}
	return l
}

// join reports whether the task is the head of the lane.
func (l *lane) join(x *task) bool {
	x.lane = l
	if l.head == nil {
		l.head = x
	}
	return l.head == x
}

// advance lets the next of a lane go, in the order of their submits.
func (t *tasks) advance(a *apply, x *task) {
	l := x.lane
	if l == nil || l.head != x {
		return
	}
	l.head = l.blocked.first
	if l.head == nil {
		delete(x.queue.lanes, l.key)
		return
	}
	t.enter(a, l.head, scheduled)
}

func (t *tasks) take(u *unique) {
	u.queue.uniques[u.key] = u
	if u.until != 0 {
		t.windows.push(u)
	}
}

// free gives a unique key back.
func (t *tasks) free(u *unique) {
	delete(u.queue.uniques, u.key)
	if u.until != 0 {
		t.windows.remove(u.place)
	}
	if x := t.byID[u.id]; x != nil {
		x.more.unique = nil
	}
}
