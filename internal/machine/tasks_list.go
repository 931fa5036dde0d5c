package machine

// taskList is a queue of tasks, linked through the tasks themselves: a task is in
// one list at a time, and leaves it from anywhere in one step.
type taskList struct {
	first, last *task
}

func (l *taskList) push(x *task) {
	x.prev, x.next = l.last, nil
	if l.last == nil {
		l.first = x
	} else {
		l.last.next = x
	}
	l.last = x
}

func (l *taskList) remove(x *task) {
	if x.prev == nil {
		l.first = x.next
	} else {
		x.prev.next = x.next
	}
	if x.next == nil {
		l.last = x.prev
	} else {
		x.next.prev = x.prev
	}
	x.prev, x.next = nil, nil
}

// workerRing is the hungry workers of a queue in the order of their turns.
type workerRing struct {
	first, last *worker
}

func (r *workerRing) push(w *worker) {
	w.prev, w.next, w.hungry = r.last, nil, true
	if r.last == nil {
		r.first = w
	} else {
		r.last.next = w
	}
	r.last = w
}

func (r *workerRing) remove(w *worker) {
	if w.prev == nil {
		r.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		r.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.hungry = nil, nil, false
}
