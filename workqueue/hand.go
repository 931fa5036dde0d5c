package workqueue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// hand is what one claim session has of one queue: the claims that are not
// acknowledged yet, and what the ledger believes that we want.
type hand struct {
	durable *durable
	claimer Claimer
	ctx     context.Context // ends with the session, or when the hand is dropped
	cancel  context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	claims   map[machine.TaskID]*claim
	refused  map[machine.Token]struct{} // handed back before we were told of them: late news of them is no news
	open     int                        // claims without an end
	ends     []machine.End
	sending  bool          // ends are on their way
	hunger   int           // what the ledger still gives us, as far as we know
	asking   bool          // a Want is on its way
	dirty    bool          // what we want may have changed meanwhile
	checking bool          // a QueryClaims is on its way
	recheckd bool          // another one is wanted after it
	empty    chan struct{} // closed when claims becomes empty; nil if nobody waits
}

// claim is a task that the ledger has given us, until the ledger has its end.
type claim struct {
	job    *job
	ended  bool
	cancel context.CancelCauseFunc // of its handler; nil while it has not started
}

func newHand(d *durable, c Claimer) *hand {
	h := &hand{
		durable: d, claimer: c,
		claims: map[machine.TaskID]*claim{}, refused: map[machine.Token]struct{}{},
	}
	h.ctx, h.cancel = context.WithCancelCause(c.Context())
	return h
}

// take makes h the hand that the queue works with.
func (d *durable) take(h *hand) {
	d.mu.Lock()
	d.hand = h
	d.mu.Unlock()
	h.adjust()
}

func (d *durable) holding() *hand {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hand
}

// drop ends the hand: nothing is acknowledged under it any more.
func (h *hand) drop() {
	d := h.durable
	h.cancel(consensus.ErrClosed)
	d.mu.Lock()
	if d.hand == h {
		d.hand = nil
	}
	d.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.claims)
	h.ends, h.open = nil, 0
	h.gone()
}

// gone tells who waits that there are no claims. h.mu is held.
func (h *hand) gone() {
	if h.empty != nil && len(h.claims) == 0 {
		close(h.empty)
		h.empty = nil
	}
}

// assigned takes new claims.
func (h *hand) assigned(a machine.Assignment) {
	h.mu.Lock()
	h.hunger = int(min(a.Want, targetMax))
	var fresh []*job
	for i := range a.Tasks {
		t := &a.Tasks[i]
		if _, no := h.refused[t.Claim]; no || h.ctx.Err() != nil {
			continue
		}
		if c := h.claims[t.ID]; c != nil && c.job.claim >= t.Claim {
			continue // told twice
		}
		j := h.job(t)
		if c := h.claims[t.ID]; c == nil || c.ended {
			h.open++
		}
		h.claims[t.ID] = &claim{job: j}
		fresh = append(fresh, j)
	}
	h.mu.Unlock()
	for _, j := range fresh {
		h.durable.addForeign(j)
	}
	h.adjust()
}

func (h *hand) job(t *machine.Assigned) *job {
	return &job{
		id: durableID(t.ID), number: uint64(t.ID), claim: t.Claim,
		attempt: int32(t.Attempt), failed: int32(t.Attempt) - 1 - int32(t.Lost),
		orderKey: t.OrderKey, submitted: t.Submitted, payload: t.Payload, checkpoint: t.Checkpoint, hand: h,
	}
}

// current returns the claim of a job if it is still ours. h.mu is held.
func (h *hand) current(j *job) *claim {
	c := h.claims[machine.TaskID(j.number)]
	if c == nil || c.job != j || h.ctx.Err() != nil {
		return nil
	}
	return c
}

func (d *durable) begin(ctx context.Context, j *job) (context.Context, context.CancelFunc, bool) {
	h := j.hand
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.current(j)
	if c == nil || c.ended {
		return nil, nil, false
	}
	ctx, c.cancel = context.WithCancelCause(ctx)
	cancel := c.cancel
	unhook := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	return ctx, func() { unhook(); cancel(nil) }, true
}

func (d *durable) end(j *job, v verdict) {
	j.hand.end(j, machine.End{
		ID: machine.TaskID(j.number), Claim: j.claim, How: machine.TaskEnd(v.end), Delay: uint64(v.delay),
		Err: v.err, Result: v.result, Checkpoint: v.checkpoint,
	})
}

func (d *durable) release(j *job) {
	j.hand.end(j, machine.End{ID: machine.TaskID(j.number), Claim: j.claim, How: machine.EndRelease})
}

// hungry is called when a worker ran out of work, and when there are others.
func (d *durable) hungry() {
	if h := d.holding(); h != nil {
		h.adjust()
		return
	}
	if len(d.crew()) > 0 {
		d.lease.join(d)
	}
}

// end queues the end of an attempt for the ledger.
func (h *hand) end(j *job, e machine.End) {
	h.mu.Lock()
	c := h.current(j)
	if c == nil || c.ended {
		h.mu.Unlock()
		return // lost, cancelled, or given to somebody else: nothing is acknowledged
	}
	c.ended = true
	h.open--
	h.report(e)
	h.mu.Unlock()
	h.adjust()
}

// report queues an end. h.mu is held.
func (h *hand) report(e machine.End) {
	h.ends = append(h.ends, e)
	if !h.sending {
		h.sending = true
		h.engineRun(h.send)
	}
}

func (h *hand) engineRun(fn func()) { h.durable.engine.run(fn) }

const (
	batchEnds  = 1024
	batchBytes = 256 << 10
	maxBehind  = 4096 // ends that the ledger has not got yet: with more, nothing more is wanted
)

// send reports ends, one command after the other, until there are no more: what
// ends while one is on its way goes with the next.
func (h *hand) send() {
	for {
		batch := h.batch()
		if batch == nil || !h.finish(batch) {
			return
		}
	}
}

// batch takes the ends that go next.
func (h *hand) batch() []machine.End {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, size := 0, 0
	for ; n < min(len(h.ends), batchEnds); n++ {
		e := &h.ends[n]
		if size += len(e.Result) + len(e.Checkpoint) + len(e.Err) + 32; size > batchBytes && n > 0 {
			break
		}
	}
	if n == 0 || h.ctx.Err() != nil {
		h.sending = false
		return nil
	}
	batch := h.ends[:n:n]
	h.ends = h.ends[n:]
	return batch
}

// finish reports the batch until the ledger has it. False: the session has ended,
// and its claims with it.
func (h *hand) finish(batch []machine.End) bool {
	for pause := 10 * time.Millisecond; ; {
		res, err := h.claimer.Do(h.ctx, machine.OpFinish, &machine.Finish{Queue: h.durable.queue, Ends: batch})
		if err == nil {
			err = refused(res)
		}
		if err == nil {
			h.acknowledged(batch)
			return true
		}
		if h.ctx.Err() != nil {
			return false
		}
		h.durable.engine.log.Warn("ends of attempts could not be reported", "queue", h.durable.queue, "ends", len(batch), "err", err, "again", pause)
		if !h.durable.engine.sleep(pause) {
			return false
		}
		pause = min(2*pause, time.Second)
	}
}

func (h *hand) acknowledged(batch []machine.End) {
	h.mu.Lock()
	if h.ctx.Err() == nil {
		for i := range batch {
			if c := h.claims[batch[i].ID]; c != nil && c.job.claim == batch[i].Claim {
				delete(h.claims, batch[i].ID)
			}
		}
		h.gone()
	}
	h.mu.Unlock()
	h.adjust()
}

// revoke ends a claim that the ledger has ended: its task was cancelled.
func (h *hand) revoke(id machine.TaskID, token machine.Token) {
	h.mu.Lock()
	c := h.claims[id]
	if c == nil || c.job.claim != token {
		h.mu.Unlock()
		return
	}
	delete(h.claims, id)
	if !c.ended {
		h.open--
	}
	cancel := c.cancel
	h.gone()
	h.mu.Unlock()
	if cancel != nil {
		cancel(ErrCancelled)
	}
	h.adjust()
}

// reported waits until the ledger has the end of every claim.
func (d *durable) reported(ctx context.Context) error {
	h := d.holding()
	if h == nil {
		return nil
	}
	h.mu.Lock()
	if len(h.claims) == 0 {
		h.mu.Unlock()
		return nil
	}
	if h.empty == nil {
		h.empty = make(chan struct{})
	}
	empty := h.empty
	h.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not all ends are reported: %w", context.Cause(ctx))
	}
}
