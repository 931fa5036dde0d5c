package workqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/clatter-go/clatter/consensus"
)

var (
	// ErrDuplicate reports that the unique key is taken; the id returned with it is that of the task that has it.
	ErrDuplicate = errors.New("duplicate task")
	// ErrFull reports that MaxReady tasks are unfinished; nothing was submitted.
	ErrFull = errors.New("queue is full")
	// ErrNotFound reports a task that nobody knows: it never was, its retention has
	// passed, or the node that kept it is gone.
	ErrNotFound = errors.New("task not found")
	// ErrCancelled is the cause of the end of a handler's ctx when its task was cancelled.
	ErrCancelled = errors.New("task cancelled")
	// ErrDraining is the cause of the end of a handler's ctx when [Workers].Drain has passed.
	ErrDraining = errors.New("queue is draining")
	// ErrTimeout is the cause of the end of a handler's ctx when [Config].Timeout has passed.
	ErrTimeout = errors.New("attempt timed out")
)

// ConfigError names a field that cannot work. It Is [consensus.ErrInvalid].
type ConfigError struct{ Queue, Field, Reason string }

// Error says what is wrong.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("queue %q: %s %s", e.Queue, e.Field, e.Reason)
}

// Is reports whether target is consensus.ErrInvalid.
func (e *ConfigError) Is(target error) bool { return target == consensus.ErrInvalid }

// NameError is a name that cannot be used: names are 1 to 256 bytes of UTF-8 without
// control characters. It Is [consensus.ErrInvalid].
type NameError struct{ What, Name, Reason string }

// Error says what is wrong.
func (e *NameError) Error() string { return fmt.Sprintf("%s %q %s", e.What, e.Name, e.Reason) }

// Is reports whether target is consensus.ErrInvalid.
func (e *NameError) Is(target error) bool { return target == consensus.ErrInvalid }

// SizeError is something larger than its limit, in bytes: a payload (1 MiB), a
// result or a checkpoint (64 KiB), a SubmitAll (1 MiB). It Is [consensus.ErrInvalid].
type SizeError struct {
	What      string
	Size, Max int
}

// Error says what is wrong.
func (e *SizeError) Error() string {
	return fmt.Sprintf("%s has %d bytes, at most %d are allowed", e.What, e.Size, e.Max)
}

// Is reports whether target is consensus.ErrInvalid.
func (e *SizeError) Is(target error) bool { return target == consensus.ErrInvalid }

// OptionError is an option that the queue's mode cannot keep: a volatile queue knows
// no Priority, Unique or OrderKey. It Is [consensus.ErrInvalid].
type OptionError struct{ Option, Reason string }

// Error says what is wrong.
func (e *OptionError) Error() string { return fmt.Sprintf("option %s: %s", e.Option, e.Reason) }

// Is reports whether target is consensus.ErrInvalid.
func (e *OptionError) Is(target error) bool { return target == consensus.ErrInvalid }

// UnknownError reports a Submit that was sent and not answered before its ctx ended:
// the tasks may have been submitted. It Is [consensus.ErrUnknown] and the cause of
// the end of ctx.
type UnknownError struct {
	queue string
	cause error
	sub   *submission
}

// Error says that the outcome is open, and why.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("submit to %q: %v: Retry asks again: %v", e.queue, consensus.ErrUnknown, e.cause)
}

// Is reports whether target is consensus.ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == consensus.ErrUnknown }

// Unwrap returns why the call ended.
func (e *UnknownError) Unwrap() error { return e.cause }

// Retry asks for the outcome of the same submission, which is made now if it was
// not made before, and never twice. It returns what Submit or SubmitAll would have.
func (e *UnknownError) Retry(ctx context.Context) ([]TaskID, error) { return e.sub.retry(ctx) }

// Snooze, returned by a handler, hands the task back: it is ready again after d, and
// the attempt does not count.
func Snooze(d time.Duration) error { return &outcome{end: snooze, delay: d} }

// RetryAfter, returned by a handler, is a failed attempt whose next one follows
// after d instead of [Config].Backoff.
func RetryAfter(d time.Duration, err error) error { return &outcome{end: retry, delay: d, err: err} }

// Dead, returned by a handler, ends the task as failed: no further attempt can help.
func Dead(err error) error { return &outcome{end: dead, err: err} }

// Discard, returned by a handler, ends the task as not worth doing; it counts as done.
func Discard(err error) error { return &outcome{end: discard, err: err} }

// outcome is an error that tells the queue what to do with the task.
type outcome struct {
	end   ending
	delay time.Duration
	err   error
}

func (o *outcome) Error() string {
	if o.err == nil {
		return o.end.String()
	}
	return o.err.Error()
}

func (o *outcome) Unwrap() error { return o.err }
