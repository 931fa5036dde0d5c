package workqueue

import (
	"context"
	"time"
)

// outgoing is an end that its origin is to be told.
type outgoing struct {
	start uint64
	ended
}

// end queues the end of an attempt for the origin of the task.
func (o *origin) end(j *job, d verdict) {
	t := o.thief
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return // and its tasks with it, or it has them run again
	}
	t.unsent.Add(1)
	o.outbox = append(o.outbox, outgoing{j.start, ended{j.number, j.ticket, d}})
	if !o.sending {
		o.sending = t.queue.engine.run(o.send)
	}
}

const (
	reportEnds  = 512
	reportBytes = 512 << 10
)

// send reports ends, one message after the other, until there are no more: what
// ends while one is on its way goes with the next. An origin that is dead, or has
// started anew, is told nothing: the tasks are no longer ours, or nobody's.
func (o *origin) send() {
	v := o.thief.queue
	for pause := settleAfter; ; {
		m := o.batch()
		if m == nil {
			return
		}
		ctx, cancel := context.WithTimeout(v.engine.ctx, askTimeout)
		_, err := v.engine.peers.Call(ctx, o.name, methodDone, pack(m))
		cancel()
		if err == nil {
			o.told(len(m.ends))
			pause = settleAfter
			continue
		}
		if !v.engine.sleep(pause) {
			return
		}
		pause = min(2*pause, time.Second)
	}
}

// batch returns the ends that go next; they stay in the outbox until they are told.
func (o *origin) batch() *report {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.outbox) == 0 {
		o.outbox, o.sending = nil, false
		return nil
	}
	m := &report{queue: o.thief.queue.queue, start: o.outbox[0].start, ends: make([]ended, 0, min(len(o.outbox), reportEnds))}
	size := 0
	for i := range o.outbox {
		e := &o.outbox[i]
		if size += len(e.result) + len(e.checkpoint) + len(e.err); i == reportEnds || e.start != m.start || size > reportBytes && i > 0 {
			break
		}
		m.ends = append(m.ends, e.ended)
	}
	return m
}

// told drops the first n ends of the outbox.
func (o *origin) told(n int) {
	o.mu.Lock()
	n = min(n, len(o.outbox))
	full := len(o.outbox) > maxOutbox
	clear(o.outbox[:n])
	o.outbox = o.outbox[n:]
	full = full && len(o.outbox) <= maxOutbox
	o.mu.Unlock()
	t := o.thief
	if full {
		t.wake()
	}
	if t.unsent.Add(-int64(n)) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sent != nil {
		close(t.sent)
		t.sent = nil
	}
}

// judge forgets what an origin is owed that is dead or has started anew.
func (o *origin) judge(p Peer, known bool) {
	o.mu.Lock()
	n := 0
	switch {
	case known && p.Alive && (p.Boot == o.boot || o.boot == 0):
		o.boot, o.seen, o.gone = p.Boot, true, false
	case !known && !o.seen:
	default:
		n = len(o.outbox)
		o.unclear, o.left, o.line, o.pause, o.rest = false, 0, time.Time{}, 0, time.Time{}
		o.boot, o.seen = p.Boot, known && p.Alive
		o.gone = !o.seen
	}
	o.mu.Unlock()
	if n > 0 {
		o.told(n)
	}
}

// reported waits until every origin knows what became of the tasks that we stole.
func (v *volatile) reported(ctx context.Context) error {
	t := &v.thief
	t.mu.Lock()
	if t.unsent.Load() == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.sent == nil {
		t.sent = make(chan struct{})
	}
	sent := t.sent
	t.mu.Unlock()
	select {
	case <-sent:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
