package workqueue

import (
	"context"
	"time"

	"github.com/clatter-go/clatter/internal/machine"
)

// A node wants what its workers run now, and what they run in the time of a few
// commits. Tasks longer than that are not taken ahead, so that they go to whoever is
// free first.

// desired is how many more claims the node wants now. h.mu is held.
func (h *hand) desired() (n, target int) {
	target = h.durable.target()
	if h.durable.engine.isDraining() || len(h.claims)-h.open > maxBehind {
		return 0, target
	}
	return max(target-h.open, 0), target
}

// adjust tells the ledger what we want if that differs from what it believes. One
// command is on its way at a time. A small wish waits while there is work here: it
// costs a command.
func (h *hand) adjust() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asking {
		h.dirty = true
		return
	}
	if h.ctx.Err() != nil || !h.differs() {
		return
	}
	h.asking = true
	h.engineRun(h.ask)
}

// differs says whether the ledger should be told. h.mu is held.
func (h *hand) differs() bool {
	n, target := h.desired()
	switch {
	case n == h.hunger:
		return false
	case n < h.hunger:
		return n == 0 && target == 0 || h.durable.engine.isDraining() || h.hunger-n > target/2
	}
	return n-h.hunger >= max(1, target/4) || h.durable.ready.Load() == 0
}

// ask sends wishes until the ledger believes what we want.
func (h *hand) ask() {
	pause := 10 * time.Millisecond
	for {
		h.mu.Lock()
		if h.ctx.Err() != nil || !h.differs() {
			h.asking, h.dirty = false, false
			h.mu.Unlock()
			return
		}
		n, _ := h.desired()
		h.hunger = n // before it is sent: news of what is given for it may come before the answer
		h.dirty = false
		h.mu.Unlock()
		err := h.durable.settings(h.ctx)
		var res machine.Result
		if err == nil {
			res, err = h.claimer.Do(h.ctx, machine.OpWant, &machine.Want{Queue: h.durable.queue, N: uint64(n)})
		}
		if err == nil {
			err = refused(res)
		}
		if err == nil {
			pause = 10 * time.Millisecond
			continue
		}
		if h.ctx.Err() == nil {
			h.durable.engine.log.Warn("the ledger could not be asked for tasks", "queue", h.durable.queue, "err", err, "again", pause)
		}
		if !h.durable.engine.sleep(pause) {
			return
		}
		pause = min(2*pause, time.Second)
		h.mu.Lock()
		h.hunger = -1 // unknown
		h.mu.Unlock()
	}
}

// recheck compares our claims with the ledger's: news of them may have been lost (protocol 15).
func (h *hand) recheck() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checking {
		h.recheckd = true
		return
	}
	h.checking = true
	h.engineRun(h.check)
}

func (h *hand) check() {
	for {
		h.mu.Lock()
		h.recheckd = false
		before := make(map[machine.Token]struct{}, len(h.claims))
		for _, c := range h.claims {
			before[c.job.claim] = struct{}{}
		}
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(h.ctx, h.durable.cfg.Lease)
		res, err := h.durable.engine.ledger.Query(ctx, &machine.Query{
			Kind: machine.QueryClaims, Session: h.claimer.ID(), Name: h.durable.queue,
		})
		cancel()
		if err == nil {
			err = refused(res)
		}
		var a machine.Assignment
		if err == nil {
			err = machine.Decode(res.Body, &a)
		}
		if err == nil {
			h.compare(a, before)
		}
		h.mu.Lock()
		if h.ctx.Err() != nil || err == nil && !h.recheckd {
			h.checking = false
			h.mu.Unlock()
			break
		}
		h.mu.Unlock()
		if err != nil && !h.durable.engine.sleep(100*time.Millisecond) {
			return
		}
	}
	h.adjust()
}

// compare hands back what we do not know, and gives up what the ledger does not
// know. An unknown claim is never started: it may be one that we have ended, and
// whose acknowledgement came after the ledger was read. Handing that back changes
// nothing.
func (h *hand) compare(a machine.Assignment, before map[machine.Token]struct{}) {
	h.mu.Lock()
	h.hunger = int(min(a.Want, targetMax))
	listed := make(map[machine.Token]struct{}, len(a.Tasks))
	for i := range a.Tasks {
		t := &a.Tasks[i]
		listed[t.Claim] = struct{}{}
		if c := h.claims[t.ID]; c != nil && c.job.claim == t.Claim {
			continue
		}
		if _, told := h.refused[t.Claim]; !told {
			h.refused[t.Claim] = struct{}{}
			h.report(machine.End{ID: t.ID, Claim: t.Claim, How: machine.EndRelease})
		}
	}
	var gone []*claim
	for _, c := range h.claims {
		_, was := before[c.job.claim]
		if _, is := listed[c.job.claim]; was && !is && !c.ended {
			gone = append(gone, c)
		}
	}
	h.mu.Unlock()
	for _, c := range gone {
		h.revoke(machine.TaskID(c.job.number), c.job.claim)
	}
}
