package machine

import (
	"fmt"
	"slices"
	"strings"
)

// finish ends attempts. An end counts only if its session still has the task under
// the same claim (T1): whoever lost a task meanwhile is refused.
func (t *tasks) finish(a *apply, s *session, c *Finish) Result {
	for i := range c.Ends {
		if why := c.Ends[i].wrong(); why != "" {
			return invalid(fmt.Sprintf("end %d: %s", i, why))
		}
	}
	var answer FinishAnswer
	for i := range c.Ends {
		e := &c.Ends[i]
		x := t.byID[e.ID]
		if x == nil || x.place != running || x.claim != e.Claim || x.owner.owner.id != s.id || x.queue.settings.Queue != c.Queue {
			answer.Refused = append(answer.Refused, uint64(i))
			continue
		}
		t.end(a, x, e)
	}
	return Result{Body: Encode(&answer)}
}

func (e *End) wrong() string {
	switch {
	case e.How < EndDone || e.How > EndRelease:
		return fmt.Sprintf("how %d is not known", e.How)
	case len(e.Result) > maxPayload:
		return fmt.Sprintf("a result has at most %d bytes, not %d", maxPayload, len(e.Result))
	case len(e.Checkpoint) > maxCheckpoint:
		return fmt.Sprintf("a checkpoint has at most %d bytes, not %d", maxCheckpoint, len(e.Checkpoint))
	}
	return ""
}

// end carries out the end of an attempt under the current claim.
func (t *tasks) end(a *apply, x *task, e *End) {
	switch e.How {
	case EndDone:
		t.conclude(a, x, done, "", e.Result)
	case EndDiscard:
		t.conclude(a, x, discarded, cut(e.Err), nil)
	case EndDead:
		t.conclude(a, x, dead, cut(e.Err), e.Result)
	case EndRetry:
		t.again(a, x, fresh, e)
	case EndRelease:
		x.attempt--
		t.again(a, x, returned, e)
	}
}

// again puts a running task back in line. Whatever ends an attempt in order is
// cleared of having killed its worker; what is handed back has not been tried.
func (t *tasks) again(a *apply, x *task, r rank, e *End) {
	delayed := scheduled
	if r == fresh {
		delayed = retrying
	}
	t.move(x, nowhere, nil) // its weight leaves the worker before it changes
	if r == fresh || x.rank != suspects {
		x.rank = r
	}
	more := x.extra()
	more.at = 0
	if e.Delay != 0 {
		more.at = later(a.clock, e.Delay)
	}
	if e.Err != "" {
		more.err = cut(e.Err)
	}
	if len(e.Checkpoint) > 0 {
		more.checkpoint = cloned(e.Checkpoint)
	}
	if x.late(a) {
		t.conclude(a, x, dead, "deadline", nil)
		return
	}
	t.enter(a, x, delayed)
}

// cut makes an error text as long as one may be, at the end of a rune.
func cut(err string) string {
	if len(err) <= maxErr {
		return err
	}
	return strings.ToValidUTF8(err[:maxErr], "")
}

// conclude finishes a task for good and tells those who wait for it.
func (t *tasks) conclude(a *apply, x *task, how place, err string, value []byte) {
	q, more := x.queue, x.extra()
	more.at = a.clock
	t.move(x, how, nil)
	q.pending -= uint64(len(x.payload))
	more.err, more.value = err, nil
	if len(value) > 0 {
		more.value = cloned(value)
	}
	if how != dead { // the dead may be tried once more
		x.payload, more.checkpoint = nil, nil
	}
	if u := more.unique; u != nil && (u.until == 0 || how == dead || how == cancelled) {
		t.free(u)
	}
	if x.crashes > 0 {
		t.blames = slices.DeleteFunc(t.blames, func(b blame) bool { return b.task == x.id })
	}
	t.advance(a, x)
	if how != dead {
		x.lane = nil
	}
	q.kept += x.keeps()
	result := x.result()
	a.change(Event{Kind: EventTask, Name: q.settings.Queue, N: uint64(x.id), Last: true, Body: Encode(&result)})
	for q.count[done]+q.count[dead]+q.count[discarded]+q.count[cancelled] > t.limit.Finished || q.kept > t.limit.Kept {
		t.forget(q.finished.first)
	}
}

// keeps is the bytes of a finished task.
func (x *task) keeps() uint64 {
	return uint64(len(x.payload) + len(x.more.value) + len(x.more.checkpoint) + len(x.more.err))
}

// forget drops the oldest finished task of a queue.
func (t *tasks) forget(x *task) {
	q := x.queue
	q.kept -= x.keeps()
	t.move(x, nowhere, nil)
	delete(t.byID, x.id)
	if oldest := q.finished.first; oldest != nil {
		t.setAlarm(oldest)
	}
}

// cancel ends a task that is not finished, wherever it is.
func (t *tasks) cancel(a *apply, _ *session, c *CancelTask) Result {
	x := t.byID[c.ID]
	if x == nil {
		return Result{Code: NotFound}
	}
	if x.place >= done {
		result := x.result()
		return Result{Code: Conflict, Body: Encode(&result)}
	}
	if w := x.owner; w != nil {
		a.tell(Event{Kind: EventCancel, Session: w.owner.id, Token: x.claim, N: uint64(x.id), Name: x.queue.settings.Queue})
	}
	t.conclude(a, x, cancelled, cut(c.Reason), nil)
	return Result{}
}

// blame remembers a loss that was counted against a task, because it may have been
// none: a session also expires when its node is cut off or stopped for a while.
type blame struct {
	node string
	boot uint64
	task TaskID
}

func (b *blame) fields(k *coder) {
	k.str(&b.node)
	k.u64(&b.boot)
	k.u64((*uint64)(&b.task))
}

// ended puts the tasks of a session back: handed back by one that closed itself,
// lost with one that did not.
func (t *tasks) ended(a *apply, id SessionID, crashed bool) {
	o := t.owners[id]
	if o == nil {
		return
	}
	o.gone = true
	delete(t.owners, id)
	for _, w := range o.workers {
		if w.hungry {
			w.queue.hungry.remove(w)
		}
	}
	for _, w := range o.workers {
		for w.claims.first != nil {
			if x := w.claims.first; crashed {
				t.lose(a, x)
			} else {
				t.end(a, x, &End{How: EndRelease})
			}
		}
	}
}

// lose takes a task from a worker that is gone. The attempt may have been started,
// so its number is spent. Only a suspect is charged with the loss: it was the only
// one of its session.
func (t *tasks) lose(a *apply, x *task) {
	o := x.owner.owner
	x.lost++
	if x.rank == suspects {
		x.crashes++
		t.blames = append(t.blames, blame{o.node, o.boot, x.id})
	}
	if most := x.queue.settings.MaxCrashes; uint64(x.crashes) >= most {
		t.conclude(a, x, dead, fmt.Sprintf("its worker was lost %d times, the last one on node %s", x.lost, o.node), nil)
		return
	}
	t.move(x, nowhere, nil)
	x.rank = suspects
	if x.late(a) {
		t.conclude(a, x, dead, "deadline", nil)
		return
	}
	x.extra().at = 0
	t.enter(a, x, scheduled)
}

// opened hears that a node opened a session. The same boot as before proves that
// its earlier loss was no crash; a later one proves that it was.
func (t *tasks) opened(node string, boot uint64) {
	t.blames = slices.DeleteFunc(t.blames, func(b blame) bool {
		if b.node != node || b.boot > boot {
			return false
		}
		if b.boot == boot {
			t.byID[b.task].crashes--
		}
		return true
	})
}
