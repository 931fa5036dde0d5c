package workqueue

import (
	"context"
	"fmt"
	"iter"

	"github.com/clatter-go/clatter/consensus"
)

// Host is what queues are opened on; *node.Node is one.
type Host interface{ Queues() *Engine }

// Queue is a node's handle on the queue of that name. Payloads are encoded as
// msgpack in map form; a T with MarshalBinary and UnmarshalBinary encodes itself.
type Queue[T any] struct {
	name   string
	cfg    Config
	engine *Engine
	bench  *bench
}

// Open returns a handle on a queue; it asks nobody. Queues are not created: the
// first use of a name makes it. Names are 1 to 256 bytes of UTF-8 without control
// characters. Errors: [*NameError], [*ConfigError], [consensus.ErrClosed].
func Open[T any](h Host, name string, cfg Config) (*Queue[T], error) {
	if err := checkText("queue name", name); err != nil {
		return nil, err
	}
	if err := cfg.check(name); err != nil {
		return nil, err
	}
	e := h.Queues()
	b, err := e.open(name, cfg.withDefaults())
	if err != nil {
		return nil, err
	}
	return &Queue[T]{name: name, cfg: b.cfg, engine: e, bench: b}, nil
}

// Submit puts a task in the queue and returns its id. Payloads have at most 1 MiB.
//
// A durable Submit returns when a majority of the voters has the task on disk; calls
// that come while another one is on its way share a commit. When ctx ends the error
// Is its cause and either [consensus.ErrNoQuorum], nothing happened, or
// [consensus.ErrUnknown], then it is an [*UnknownError] to ask again with. A
// volatile Submit does not block.
//
// Other errors: [ErrDuplicate] together with the id of the earlier task, [ErrFull],
// [*SizeError], [*OptionError], [*NameError], [consensus.ErrClosed]; nothing is
// submitted then.
func (q *Queue[T]) Submit(ctx context.Context, payload T, opts ...TaskOption) (TaskID, error) {
	specs := make([]spec, 1)
	if err := q.spec(&specs[0], payload, opts); err != nil {
		return "", q.failed("submit to", err)
	}
	ids, err := q.bench.keeper.submit(ctx, specs)
	if err != nil {
		err = q.failed("submit to", err)
	}
	if len(ids) == 0 {
		return "", err
	}
	return ids[0], err
}

// SubmitAll submits tasks in one commit, 1 MiB in all: all or none. The ids are in
// the order of the tasks; with [ErrDuplicate] some of them are of earlier tasks and
// the others are submitted. Other errors are those of Submit.
func (q *Queue[T]) SubmitAll(ctx context.Context, tasks iter.Seq2[T, []TaskOption]) ([]TaskID, error) {
	var specs []spec
	size := 0
	for payload, opts := range tasks {
		specs = append(specs, spec{})
		s := &specs[len(specs)-1]
		if err := q.spec(s, payload, opts); err != nil {
			return nil, q.failed("submit to", fmt.Errorf("task %d: %w", len(specs)-1, err))
		}
		size += len(s.payload)
		if size > maxPayload && len(specs) > 1 {
			return nil, q.failed("submit to", &SizeError{What: "the batch up to task " + fmt.Sprint(len(specs)-1), Size: size, Max: maxPayload})
		}
	}
	if len(specs) == 0 {
		return nil, nil
	}
	if len(specs) > maxTasks {
		return nil, q.failed("submit to", fmt.Errorf("%w: %d tasks in one batch, at most %d are allowed", consensus.ErrInvalid, len(specs), maxTasks))
	}
	ids, err := q.bench.keeper.submit(ctx, specs)
	if err != nil {
		err = q.failed("submit to", err)
	}
	return ids, err
}

// maxTasks bounds the tasks of one SubmitAll.
const maxTasks = 16384

func (q *Queue[T]) spec(s *spec, payload T, opts []TaskOption) (err error) {
	for _, o := range opts {
		o(s)
	}
	if err := s.check(q.cfg.Mode); err != nil {
		return err
	}
	s.payload, err = encode("payload", &payload, maxPayload)
	return err
}

// Handle runs h for the queue's tasks on this node, w.N at a time. It blocks until
// ctx ends: then nothing more is started, what was not started is handed back, and
// Handle returns nil when the running handlers have returned; their ctx ends after
// w.Drain. When the node is left or closed the error Is [consensus.ErrClosed].
// Several Handle calls of one queue share its tasks.
func (q *Queue[T]) Handle(ctx context.Context, h Handler[T], w Workers) error {
	w = w.withDefaults()
	if err := w.check(q.name); err != nil {
		return err
	}
	return q.bench.serve(ctx, q.engine, w, q.run(h))
}

// Wait returns the result of a task when it is finished, at once if it is already.
// A failed task is no error of Wait: see Result.Err. [ErrNotFound]: the task never
// was, or its retention has passed, or, volatile, its node is gone.
func (q *Queue[T]) Wait(ctx context.Context, id TaskID) (Result, error) {
	r, err := q.bench.keeper.wait(ctx, id)
	if err != nil {
		err = fmt.Errorf("wait for %s in %q: %w", id, q.name, err)
	}
	return r, err
}

// Cancel ends a task that is not finished; its result says cancelled and why. The
// ctx of a running handler ends with [ErrCancelled] in a durable queue; in a
// volatile one the handler is not told, and what it does is not counted. Errors:
// [ErrNotFound], also for a finished task; a volatile task can be cancelled where it
// was submitted only.
func (q *Queue[T]) Cancel(ctx context.Context, id TaskID, reason string) error {
	if err := q.bench.keeper.cancel(ctx, id, clip(reason, maxText)); err != nil {
		return fmt.Errorf("cancel %s in %q: %w", id, q.name, err)
	}
	return nil
}

// Stats counts the tasks: of the whole queue if it is durable, of those submitted on
// this node if it is volatile.
func (q *Queue[T]) Stats(ctx context.Context) (Stats, error) {
	s, err := q.bench.keeper.stats(ctx)
	if err != nil {
		err = fmt.Errorf("stats of %q: %w", q.name, err)
	}
	return s, err
}

func (q *Queue[T]) failed(what string, err error) error {
	return fmt.Errorf("%s %q: %w", what, q.name, err)
}
