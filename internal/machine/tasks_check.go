package machine

import "fmt"

// check verifies T1, T2 and, for workers, L3. last is the last id that was minted.
func (t *tasks) check(last TaskID) error {
	var seen, bytes, kept, alarms uint64
	claims := map[Token]bool{}
	for x := range t.all() {
		if err := t.checkTask(x, claims); err != nil {
			return err
		}
		if x.id > last {
			return fmt.Errorf("T2: task %x was never minted, the last id is %x", uint64(x.id), uint64(last))
		}
		seen++
		if x.place >= done {
			kept += x.keeps()
		} else {
			bytes += uint64(len(x.payload))
		}
		if x.alarm != 0 {
			alarms++
		}
	}
	for _, q := range t.queues {
		bytes, kept = bytes-q.pending, kept-q.kept
		if err := q.check(); err != nil {
			return err
		}
		for p, n := range q.count {
			seen -= n
			if p == int(nowhere) && n != 0 {
				return fmt.Errorf("T2: queue %q counts %d tasks nowhere", q.settings.Queue, n)
			}
		}
	}
	if seen != 0 || bytes != 0 || kept != 0 || alarms != uint64(len(t.alarms)) {
		return fmt.Errorf("T2: the counts are off by %d tasks, %d bytes pending and %d kept, or %d alarms are not %d", int64(seen), int64(bytes), int64(kept), alarms, len(t.alarms))
	}
	charged := map[TaskID]uint8{}
	for i := range t.blames {
		id := t.blames[i].task
		charged[id]++
		if x := t.byID[id]; x == nil || x.place >= done || x.crashes < charged[id] {
			return fmt.Errorf("T2: task %x is charged with a loss and is not there", uint64(id))
		}
	}
	return t.checkOwners()
}

// checkTask verifies that a task is where it says, with a claim of its own.
func (t *tasks) checkTask(x *task, claims map[Token]bool) error {
	at, i := x.wakes(), int(x.alarm)-1
	switch {
	case t.byID[x.id] != x:
		return fmt.Errorf("T2: task %x is in two places or in none", uint64(x.id))
	case (x.owner != nil) != (x.place == running):
		return fmt.Errorf("T1: task %x is %s and its owner does not fit", uint64(x.id), placeNames[x.place])
	case x.claim > t.claims || claims[x.claim] && x.claim != 0 || x.place == running && (x.claim == 0 || x.attempt == 0):
		return fmt.Errorf("T1: claim %d of task %x is not its own", x.claim, uint64(x.id))
	case (at != 0) != (i >= 0) || i >= 0 && (t.alarms[i].task != x || t.alarms[i].at != at):
		return fmt.Errorf("T2: task %x wakes at %d and has no such alarm", uint64(x.id), at)
	case x.place == blocked && x.lane.head == x, x.lane != nil && x.place != blocked && x.place < done && x.lane.head != x:
		return fmt.Errorf("T2: task %x is out of its lane", uint64(x.id))
	}
	claims[x.claim] = true
	return nil
}

// check verifies that nothing that may be started is left while somebody is hungry.
func (q *queue) check() error {
	refused := false
	if w := q.hungry.first; w != nil && (q.settings.MaxRunning == 0 || q.count[running] < q.settings.MaxRunning) {
		if x, _ := q.match(&refused); x != nil {
			return fmt.Errorf("T2: task %x of %q is ready while session %x is hungry", uint64(x.id), q.settings.Queue, uint64(w.owner.id))
		}
	}
	for key, l := range q.lanes {
		if l.head == nil || l.head.place == blocked || l.head.place >= done {
			return fmt.Errorf("T2: lane %q of %q waits for nothing", key, q.settings.Queue)
		}
	}
	for key, u := range q.uniques {
		if u.key != key || u.queue != q {
			return fmt.Errorf("unique key %q of %q is filed wrongly", key, q.settings.Queue)
		}
	}
	return nil
}

func (t *tasks) checkOwners() error {
	for _, id := range sortedKeys(t.owners) {
		o := t.owners[id]
		if t.sessions.open(id) == nil || o.gone || o.id != id || len(o.workers) == 0 {
			return fmt.Errorf("L3: session %x is not open and works", uint64(id))
		}
		suspicious := 0
		for _, w := range o.workers {
			var bytes uint64
			for x := w.claims.first; x != nil; x = x.next {
				bytes += x.weight()
				if x.rank == suspects {
					suspicious++
				}
			}
			if bytes != w.bytes || w.hungry != (w.want > 0 && bytes < t.limit.Claimed) || w.untold != nil {
				return fmt.Errorf("T1: session %x has %d bytes of %q, not %d, or is hungry wrongly", uint64(id), bytes, w.queue.settings.Queue, w.bytes)
			}
		}
		if suspicious != o.suspects || suspicious > 1 {
			return fmt.Errorf("T1: session %x has %d suspects, not %d", uint64(id), suspicious, o.suspects)
		}
	}
	return nil
}
