package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/wire"
)

// TaskID names a task in its queue for ever. It is text and may be stored. The id
// of a volatile task names the node that keeps it.
type TaskID string

// A durable id is "d" and the ledger's number in hex; a volatile one is "v", the
// start of its node's engine, the number there, and the node's name.

func durableID(id machine.TaskID) TaskID {
	return TaskID("d" + strconv.FormatUint(uint64(id), 16))
}

func (id TaskID) durable() (machine.TaskID, bool) {
	hex, ok := strings.CutPrefix(string(id), "d")
	n, err := strconv.ParseUint(hex, 16, 64)
	return machine.TaskID(n), ok && err == nil
}

func volatileID(node string, start, number uint64) TaskID {
	var room [96]byte
	b := append(room[:0], 'v')
	b = strconv.AppendUint(b, start, 36)
	b = append(b, '-')
	b = strconv.AppendUint(b, number, 36)
	b = append(b, '-')
	return TaskID(append(b, node...))
}

func (id TaskID) volatile() (node string, start, number uint64, ok bool) {
	rest, ok := strings.CutPrefix(string(id), "v")
	parts := strings.SplitN(rest, "-", 3)
	if !ok || len(parts) != 3 {
		return "", 0, 0, false
	}
	start, err := strconv.ParseUint(parts[0], 36, 64)
	number, err2 := strconv.ParseUint(parts[1], 36, 64)
	return parts[2], start, number, err == nil && err2 == nil
}

// Handler runs one attempt of a task. nil is done; see Snooze, RetryAfter, Dead and
// Discard; every other error, and a panic, is a failed attempt. ctx ends, with the
// cause, when the claim is lost (before anybody else can be given the task), the
// task is cancelled, [Config].Timeout or [Workers].Drain has passed, or the node is
// closed. Who ignores that must check Claim where it writes.
type Handler[T any] func(ctx context.Context, t *Task[T]) error

// Task is one attempt of a task. It is valid while its handler runs.
type Task[T any] struct {
	ID        TaskID
	Payload   T
	Attempt   int        // 1 is the first
	Claim     lock.Token // durable: grows with every assignment in the cluster, not by one; 0 in volatile queues
	OrderKey  string     // durable: tasks of one key run one at a time, in order
	Stolen    bool       // volatile: it was submitted on another node
	Submitted time.Time  // by the clock of the leader, or of the submitter's node

	resumed    []byte
	result     []byte
	checkpoint []byte
}

// SetResult sets what Wait returns once the attempt has succeeded; the last call
// counts. v is encoded at once, at most 64 KiB.
func (t *Task[T]) SetResult(v any) (err error) {
	t.result, err = encode("result", v, maxResult)
	return err
}

// Checkpoint sets what the next attempt gets from Resume, if this one ends by an
// error, a panic or Snooze. It is lost with the node. v is encoded at once, at most 64 KiB.
func (t *Task[T]) Checkpoint(v any) (err error) {
	t.checkpoint, err = encode("checkpoint", v, maxResult)
	return err
}

// Resume decodes the last checkpoint of an earlier attempt. False: there is none.
func (t *Task[T]) Resume(into any) (bool, error) {
	if len(t.resumed) == 0 {
		return false, nil
	}
	return true, wire.Unmarshal(t.resumed, into)
}

// encode returns v as msgpack. What it returns can be decoded everywhere: the
// limits of decoders are checked here.
func encode(what string, v any, limit int) ([]byte, error) {
	b, err := wire.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, &SizeError{What: what, Size: len(b), Max: limit}
	}
	if err := wire.Check(b, wire.MaxElements); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return b, nil
}

// Result is the end of a task.
type Result struct {
	State    string // done, dead, discarded or cancelled
	Value    []byte // msgpack of what the handler set
	Err      string // "" when done
	Attempts int    // attempts started
	Node     string // that ran the last one
}

// Into decodes the value that the handler set into v. It is an error if the task
// did not succeed or has no value.
func (r Result) Into(v any) error {
	switch {
	case r.Err != "":
		return fmt.Errorf("task is %s after %d attempts: %s", r.State, r.Attempts, r.Err)
	case len(r.Value) == 0:
		return fmt.Errorf("task is %s: its handler set no result", r.State)
	}
	return wire.Unmarshal(r.Value, v)
}

// Stats counts the tasks of a queue by state.
type Stats struct {
	Ready     int // may start
	Scheduled int // wait for their time
	Running   int // claimed by a node, started or not
	Retry     int // wait for the next attempt
	Dead      int // failed for good, not yet forgotten
	Done      int // done or discarded, not yet forgotten
}

// TaskOption is an option of Submit and SubmitAll.
type TaskOption func(*spec)

// spec is a task to be submitted.
type spec struct {
	payload  []byte
	at       time.Time // zero: now
	priority int
	deadline time.Time // zero: none
	unique   string
	window   time.Duration
	orderKey string
	keyed    bool // Unique was given
	ordered  bool // OrderKey was given
}

// Delay keeps the task from starting until d has passed.
func Delay(d time.Duration) TaskOption { return func(s *spec) { s.at = time.Now().Add(d) } }

// At keeps the task from starting before t, by this node's clock.
func At(t time.Time) TaskOption { return func(s *spec) { s.at = t } }

// Deadline keeps the task from being given to a node after t, by this node's clock: it is dead then.
func Deadline(t time.Time) TaskOption { return func(s *spec) { s.deadline = t } }

// Priority is 0 to 9, higher goes first; default 0. Durable queues only.
func Priority(p int) TaskOption { return func(s *spec) { s.priority = p } }

// Unique refuses a second task of the key for window from the first one's submit,
// cluster-wide: Submit returns the first one's id and ErrDuplicate. Durable queues only.
func Unique(key string, window time.Duration) TaskOption {
	return func(s *spec) { s.unique, s.window, s.keyed = key, window, true }
}

// OrderKey makes tasks of one key run one at a time, in the order of their submits. Durable queues only.
func OrderKey(key string) TaskOption { return func(s *spec) { s.orderKey, s.ordered = key, true } }

func (s *spec) check(m Mode) error {
	if m == Volatile {
		const reason = "only the ledger can keep it: use a durable queue"
		switch {
		case s.keyed:
			return &OptionError{Option: "Unique", Reason: reason}
		case s.ordered:
			return &OptionError{Option: "OrderKey", Reason: reason}
		case s.priority != 0:
			return &OptionError{Option: "Priority", Reason: reason}
		}
		return nil
	}
	var errs []error
	if s.priority < 0 || s.priority > 9 {
		errs = append(errs, &OptionError{Option: "Priority", Reason: fmt.Sprintf("%d is not 0 to 9", s.priority)})
	}
	if s.keyed {
		errs = append(errs, checkText("unique key", s.unique))
		if s.window <= 0 {
			errs = append(errs, &OptionError{Option: "Unique", Reason: "the window is not positive"})
		}
	}
	if s.ordered {
		errs = append(errs, checkText("order key", s.orderKey))
	}
	return errors.Join(errs...)
}
