package workqueue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// durable is a queue whose tasks are in the ledger.
type durable struct {
	*bench
	engine  *Engine
	lease   *lease
	awaited awaited

	mu      sync.Mutex // guards what follows
	outbox  []*submission
	sending int // Submit commands that are on their way, or will be at once
	hand    *hand

	settling chan struct{} // 1: whoever puts a token in sends the settings
	settled  bool          // under that token
}

func newDurable(e *Engine, b *bench) *durable {
	d := &durable{bench: b, engine: e, lease: e.lease(b.cfg.Lease), settling: make(chan struct{}, 1)}
	d.awaited.init(d)
	d.lease.queues = append(d.lease.queues, d)
	return d
}

// settings makes the queue's settings the cluster's, once for this engine: apply
// consults them, so they are replicated (protocol 34).
func (d *durable) settings(ctx context.Context) error {
	select {
	case d.settling <- struct{}{}:
		defer func() { <-d.settling }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.settled {
		return nil
	}
	res, err := d.engine.ledger.Do(ctx, machine.OpQueue, &machine.QueueSettings{
		Queue: d.queue, MaxReady: uint64(d.cfg.MaxReady), Retention: uint64(d.cfg.Retention), MaxRunning: uint64(d.cfg.Concurrency),
	})
	if err == nil {
		err = refused(res)
	}
	d.settled = err == nil
	return err
}

// refused turns an answer that is not OK into an error.
func refused(res machine.Result) error {
	switch res.Code {
	case machine.OK:
		return nil
	case machine.Full:
		return fmt.Errorf("%w: the bound is %d", ErrFull, res.N)
	case machine.NotFound, machine.Conflict:
		return ErrNotFound
	case machine.WindowFull:
		return fmt.Errorf("%w: too many commands of this node are outstanding", consensus.ErrOverloaded)
	case machine.NoSession:
		return consensus.ErrSessionExpired
	case machine.Invalid:
		return fmt.Errorf("%w: %s", consensus.ErrInvalid, res.Body)
	}
	return fmt.Errorf("the cluster answered with code %d: another version runs there", res.Code)
}

func (d *durable) cancel(ctx context.Context, id TaskID, reason string) error {
	n, ok := id.durable()
	if !ok {
		return ErrNotFound
	}
	res, err := d.engine.ledger.Do(ctx, machine.OpCancelTask, &machine.CancelTask{ID: n, Reason: reason})
	if err != nil {
		return err
	}
	return refused(res)
}

func (d *durable) stats(ctx context.Context) (Stats, error) {
	res, err := d.engine.ledger.Query(ctx, &machine.Query{Kind: machine.QueryStats, Name: d.queue})
	if err == nil {
		err = refused(res)
	}
	var s machine.QueueStats
	if err == nil {
		err = machine.Decode(res.Body, &s)
	}
	return Stats{
		Ready: int(s.Ready), Scheduled: int(s.Scheduled), Running: int(s.Running),
		Retry: int(s.Retry), Dead: int(s.Dead), Done: int(s.Done),
	}, err
}

// submission is one Submit or SubmitAll.
type submission struct {
	queue *durable
	tasks []machine.TaskSpec
	size  int
	done  chan struct{} // closed: what follows is final
	ids   []TaskID
	err   error

	flight *flight // under durable.mu; nil while it is in the outbox
}

// flight is one Submit command with the submissions that share it.
type flight struct {
	subs    []*submission
	callers int // that still wait; under durable.mu
	ctx     context.Context
	giveUp  context.CancelCauseFunc
}

const (
	flights     = 4 // at once: with one, whoever just missed it would wait for two
	flightTasks = 512
	flightBytes = 512 << 10
	maxWaiting  = 16384 // submissions in the outbox
	taskBytes   = 64    // about what a task takes beside its payload
)

func (d *durable) submit(ctx context.Context, specs []spec) ([]TaskID, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", consensus.ErrNoQuorum, context.Cause(ctx))
	}
	s := &submission{queue: d, done: make(chan struct{}), tasks: make([]machine.TaskSpec, len(specs))}
	now := time.Now()
	for i := range specs {
		s.tasks[i] = specs[i].ledger(now)
		s.size += len(specs[i].payload) + taskBytes
	}
	d.mu.Lock()
	if len(d.outbox) >= maxWaiting {
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: %d submits of this node wait to be sent", consensus.ErrOverloaded, maxWaiting)
	}
	d.outbox = append(d.outbox, s)
	start := d.sending < flights
	if start {
		d.sending++
	}
	d.mu.Unlock()
	if start && !d.engine.run(d.send) {
		return nil, consensus.ErrClosed
	}
	select {
	case <-s.done:
		return s.ids, s.err
	case <-ctx.Done():
		return d.abandon(ctx, s)
	}
}

func (s *spec) ledger(now time.Time) machine.TaskSpec {
	t := machine.TaskSpec{
		Payload: s.payload, Priority: uint8(s.priority), Unique: s.unique, Window: uint64(s.window), OrderKey: s.orderKey,
	}
	if !s.at.IsZero() {
		t.Delay = uint64(max(s.at.Sub(now), 0))
	}
	if !s.deadline.IsZero() {
		t.Deadline = uint64(max(s.deadline.Sub(now), 1)) // 0 would be none
	}
	return t
}

// abandon ends a call whose ctx has ended. If it is the last of its flight, the
// flight is given up, and its outcome is known at once.
func (d *durable) abandon(ctx context.Context, s *submission) ([]TaskID, error) {
	cause := context.Cause(ctx)
	d.mu.Lock()
	f := s.flight
	if f == nil {
		for i, o := range d.outbox {
			if o == s {
				d.outbox = append(d.outbox[:i], d.outbox[i+1:]...)
				break
			}
		}
		d.mu.Unlock()
		return nil, fmt.Errorf("%w: %w", consensus.ErrNoQuorum, cause)
	}
	f.callers--
	last := f.callers == 0
	d.mu.Unlock()
	if !last {
		return nil, &UnknownError{queue: d.queue, cause: cause, sub: s}
	}
	f.giveUp(cause)
	<-s.done
	if errors.Is(s.err, consensus.ErrUnknown) {
		return nil, &UnknownError{queue: d.queue, cause: cause, sub: s}
	}
	return s.ids, s.err
}

// send sends what is in the outbox, one command after the other, until it is empty:
// what queues while all are on their way goes with the next.
func (d *durable) send() {
	for {
		f := d.board()
		if f == nil {
			return
		}
		d.fly(f, f.subs)
		f.giveUp(nil)
	}
}

// board takes the next flight from the outbox; nil: it is empty.
func (d *durable) board() *flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.outbox) == 0 {
		d.sending--
		return nil
	}
	f := &flight{}
	f.ctx, f.giveUp = context.WithCancelCause(d.engine.ctx)
	n, tasks, size := 0, 0, 0
	for _, s := range d.outbox {
		if n > 0 && (tasks+len(s.tasks) > flightTasks || size+s.size > flightBytes) {
			break
		}
		s.flight = f
		n, tasks, size = n+1, tasks+len(s.tasks), size+s.size
	}
	f.subs, f.callers = append(f.subs, d.outbox[:n]...), n
	clear(d.outbox[:n])
	d.outbox = d.outbox[n:]
	return f
}

// fly sends submissions as one command and tells each its part of the answer. A
// full queue refuses the whole command: halves of it may still fit.
func (d *durable) fly(f *flight, subs []*submission) {
	all := machine.Submit{Queue: d.queue}
	for _, s := range subs {
		all.Tasks = append(all.Tasks, s.tasks...)
	}
	err := d.settings(f.ctx)
	var res machine.Result
	if err == nil {
		res, err = d.engine.ledger.Do(f.ctx, machine.OpSubmit, &all)
		if errors.Is(err, consensus.ErrSessionExpired) { // an earlier copy may have been applied
			err = fmt.Errorf("%w: %w", consensus.ErrUnknown, err)
		}
	} else if f.ctx.Err() != nil { // the settings may have been made, the tasks were not sent
		err = fmt.Errorf("%w: %w", consensus.ErrNoQuorum, context.Cause(f.ctx))
	}
	if err == nil && res.Code == machine.Full && len(subs) > 1 {
		d.fly(f, subs[:len(subs)/2])
		d.fly(f, subs[len(subs)/2:])
		return
	}
	var answer machine.SubmitAnswer
	if err == nil {
		answer, err = submitted(res, len(all.Tasks))
	}
	first := 0
	for _, s := range subs {
		s.err = err
		if err == nil {
			s.settle(answer, first)
		}
		first += len(s.tasks)
		close(s.done)
	}
}

func submitted(res machine.Result, want int) (a machine.SubmitAnswer, err error) {
	if err := refused(res); err != nil {
		return a, err
	}
	if err := machine.Decode(res.Body, &a); err != nil {
		return a, err
	}
	if len(a.IDs) != want {
		return a, fmt.Errorf("%d ids for %d tasks: another version runs there", len(a.IDs), want)
	}
	return a, nil
}

// settle takes the submission's part of an answer.
func (s *submission) settle(a machine.SubmitAnswer, first int) {
	s.ids, s.err = make([]TaskID, len(s.tasks)), nil
	for i := range s.ids {
		s.ids[i] = durableID(a.IDs[first+i])
	}
	for _, place := range a.Duplicates {
		if int(place) >= first && int(place) < first+len(s.tasks) {
			s.err = ErrDuplicate
		}
	}
}

// retry waits for the outcome, and asks for it if it is unknown.
func (s *submission) retry(ctx context.Context) ([]TaskID, error) {
	select {
	case <-s.done:
	case <-ctx.Done():
		return nil, &UnknownError{queue: s.queue.queue, cause: context.Cause(ctx), sub: s}
	}
	unknown, ok := errors.AsType[*consensus.UnknownError](s.err)
	if !ok {
		return s.ids, s.err
	}
	if err := unknown.Retry(ctx); err != nil {
		return nil, err
	}
	res, _ := unknown.Outcome()
	total, first := 0, 0
	for _, o := range s.flight.subs {
		if o == s {
			first = total
		}
		total += len(o.tasks)
	}
	answer, err := submitted(res, total)
	if err != nil {
		return nil, err
	}
	again := &submission{tasks: s.tasks}
	again.settle(answer, first)
	return again.ids, again.err
}
