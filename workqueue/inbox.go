package workqueue

import "sync/atomic"

// inbox is a lock-free queue that anybody pushes to and takes from, oldest first:
// Michael and Scott, "Simple, Fast, and Practical Non-Blocking and Blocking
// Concurrent Queue Algorithms" (1996). Nodes are never reused, so the garbage
// collector keeps the swaps free of ABA. The node at head is spent: its job was
// taken by whoever moved head to it, and stays reachable until the next take.
type inbox struct {
	_    [64]byte // pushers write tail, takers write head
	head atomic.Pointer[letter]
	_    [56]byte
	tail atomic.Pointer[letter]
	_    [56]byte
}

type letter struct {
	job  *job
	next atomic.Pointer[letter]
}

func (q *inbox) init() {
	spent := new(letter)
	q.head.Store(spent)
	q.tail.Store(spent)
}

func (q *inbox) push(j *job) {
	l := &letter{job: j}
	for {
		tail := q.tail.Load()
		next := tail.next.Load()
		if next != nil { // another push is half done: help it
			q.tail.CompareAndSwap(tail, next)
			continue
		}
		if tail.next.CompareAndSwap(nil, l) {
			q.tail.CompareAndSwap(tail, l)
			return
		}
	}
}

func (q *inbox) take() *job {
	for {
		head, tail := q.head.Load(), q.tail.Load()
		next := head.next.Load()
		if next == nil {
			return nil
		}
		if head == tail {
			q.tail.CompareAndSwap(tail, next)
			continue
		}
		if q.head.CompareAndSwap(head, next) {
			return next.job
		}
	}
}
