package workqueue

import (
	"sync"
	"time"
)

// lane is what the origin of tasks knows of one thief. Tasks change hands in one act
// of the origin, under lane.mu and then the shard's: there is no third party and no
// second phase (research on other systems' stealing found most of its bugs there).
//
// A chunk is on its way until the thief's next ask acknowledges it. If that ask does
// not, the answer was lost, and the thief will never take it: the chunk is taken
// back, unstarted.
type lane struct {
	peer string

	mu     sync.Mutex // guards what follows
	boot   uint64     // of the thief that has the tasks
	seen   bool       // membership has shown it alive
	ask    uint64     // the last one answered
	answer []byte     // to it: a copy of the ask gets a copy of the answer
	seq    uint64     // of the last chunk
	chunk  []*record  // the last chunk, while it is not acknowledged
	out    map[uint64]*record
}

func (v *volatile) lane(peer string) *lane {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.lanes[peer]
	if l == nil {
		l = &lane{peer: peer, out: map[uint64]*record{}}
		v.lanes[peer] = l
	}
	return l
}

// give answers a thief's ask.
func (v *volatile) give(from string, boot uint64, m *stealRequest) []byte {
	l := v.lane(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	if boot < l.boot {
		return nil // from before a restart that we know of
	}
	if boot > l.boot {
		v.lost(l)
		l.boot, l.ask, l.answer, l.seq, l.seen = boot, 0, nil, 0, false
	}
	if m.ask <= l.ask {
		if m.ask == l.ask {
			return l.answer
		}
		return nil
	}
	if m.ack < l.seq {
		v.takeBack(l)
	}
	l.ask, l.chunk = m.ask, nil
	answer := stealAnswer{start: v.engine.start, tasks: v.handOver(l, m.want)}
	if len(answer.tasks) == 0 && m.want > 0 {
		v.engine.remember(v.queue, from)
		answer.tasks = v.handOver(l, m.want) // what came before it was remembered was told to nobody
	}
	if len(answer.tasks) > 0 {
		l.seq++
	}
	answer.seq, answer.left = l.seq, int(max(v.own.Load(), 0))
	l.answer = pack(&answer)
	return l.answer
}

// handOver takes half of the ready tasks off the bench and makes them the thief's.
// The lane is locked.
func (v *volatile) handOver(l *lane, want int) (tasks []parcel) {
	own := int(v.own.Load())
	n := min(want, own-own/2, stealBatch)
	if n <= 0 {
		return nil
	}
	buf := make([]*job, n)
	buf = buf[:v.pull(buf)]
	tasks, l.chunk = make([]parcel, 0, len(buf)), make([]*record, 0, len(buf))
	now := time.Now()
	size := 0
	for i, j := range buf {
		if j.record == nil { // stolen itself: not ours to give
			v.add(j)
			continue
		}
		if len(tasks) > 0 && size+len(j.payload) > stealBytes {
			v.putBack(buf[i:])
			break
		}
		p, given, alone := v.assign(l, j, now, len(tasks) > 0)
		if alone && !given {
			v.putBack(buf[i : i+1])
			continue
		}
		v.own.Add(-1)
		if !given {
			continue
		}
		size += len(j.payload) + len(j.checkpoint)
		tasks = append(tasks, p)
		if alone {
			v.putBack(buf[i+1:])
			break
		}
	}
	return tasks
}

// putBack returns jobs to the bench.
func (v *volatile) putBack(jobs []*job) {
	for _, j := range jobs {
		v.add(j)
	}
}

// suspects reports whether the thief has a suspect: one is enough. The lane is locked.
func (l *lane) suspects() bool {
	for _, r := range l.out {
		if r.lane == l && r.suspect {
			return true
		}
	}
	return false
}

// assign makes one task the thief's, if it is still to be run. A suspect goes alone:
// if its thief is lost as well, that points at one task.
func (v *volatile) assign(l *lane, j *job, now time.Time, company bool) (p parcel, given, alone bool) {
	sh := v.shard(j.number)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := j.record
	if r.job != j || r.state != isReady {
		return p, false, false // cancelled
	}
	if r.suspect && (company || l.suspects()) {
		return p, false, true
	}
	var left time.Duration
	if j.deadline != 0 {
		if left = time.Duration(j.deadline - now.UnixNano()); left <= 0 {
			v.finish(sh, r, isDead, Result{State: "dead", Err: textDeadline, Attempts: int(j.attempt) - 1})
			return p, false, false
		}
	}
	sh.move(r, isAway)
	r.lane, r.claim = l, v.claimed.Add(1)
	l.out[r.number] = r
	l.chunk = append(l.chunk, r)
	return parcel{
		number: r.number, claim: r.claim, attempt: int(j.attempt), failed: int(j.failed),
		submitted: uint64(j.submitted), left: left, checkpoint: j.checkpoint, payload: j.payload,
	}, true, r.suspect
}

// takeBack returns a chunk that did not arrive; its tasks have not been started. The lane is locked.
func (v *volatile) takeBack(l *lane) {
	for _, r := range l.chunk {
		if l.out[r.number] != r {
			continue
		}
		delete(l.out, r.number)
		sh := v.shard(r.number)
		sh.mu.Lock()
		var next *job
		if r.lane == l {
			next = v.again(sh, r, r.job, isReady, 0)
		}
		sh.mu.Unlock()
		if next != nil {
			v.place(next)
		}
	}
	l.chunk = nil
}

// lost runs again what a dead thief had, as the next attempt. The lane is locked.
func (v *volatile) lost(l *lane) {
	for number, r := range l.out {
		delete(l.out, number)
		sh := v.shard(number)
		sh.mu.Lock()
		var next *job
		if r.lane == l {
			next = v.blame(sh, r, l.peer)
		}
		sh.mu.Unlock()
		if next != nil {
			v.place(next)
		}
	}
	l.chunk, l.answer = nil, nil
}

// blame decides what becomes of a task whose worker was lost. The first loss may
// have been another task's doing (protocol 26). The shard is locked.
func (v *volatile) blame(sh *shard, r *record, peer string) *job {
	if r.suspect {
		r.crashes++
	}
	r.suspect = true
	if r.crashes >= maxCrashes {
		v.finish(sh, r, isDead, Result{State: "dead", Err: "its worker was lost", Attempts: int(r.job.attempt), Node: peer})
		return nil
	}
	next := *r.job
	next.attempt++
	return v.again(sh, r, &next, isReady, 0)
}

// settle takes a report of ends. What is not under the current claim changes nothing (T1).
func (v *volatile) settle(from string, m *report) {
	l := v.lane(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range m.ends {
		e := &m.ends[i]
		r := l.out[e.number]
		if r == nil {
			continue
		}
		sh := v.shard(e.number)
		sh.mu.Lock()
		var next *job
		if r.lane == l && r.claim == e.claim {
			delete(l.out, e.number)
			next = v.conclude(sh, r, e.verdict.cloned(), from)
		}
		gone := r.lane != l
		sh.mu.Unlock()
		if gone {
			delete(l.out, e.number) // cancelled meanwhile
		}
		if next != nil {
			v.place(next)
		}
	}
	v.surplus() // the thief may have a suspect again
}

// judge ends the lane of a thief that membership declares dead, or sees with a new boot.
func (v *volatile) judge(l *lane, p Peer, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case known && p.Alive && p.Boot == l.boot:
		l.seen = true
	case known && p.Boot < l.boot: // membership does not know of its restart yet
	case !known && !l.seen: // it found us first
	default:
		v.lost(l)
		l.seen = false
	}
}
