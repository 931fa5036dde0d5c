package consensus

import (
	"context"
	"errors"
	"fmt"

	"github.com/clatter-go/clatter/internal/machine"
)

var (
	// ErrNoQuorum reports that nothing happened: no attempt of the call reached a
	// node that might have put it in the log.
	ErrNoQuorum = errors.New("no quorum")
	// ErrUnknown reports that the command may have happened. The error is an *UnknownError.
	ErrUnknown = errors.New("outcome unknown")
	// ErrSessionExpired reports that the session ended, and with it all it held.
	ErrSessionExpired = errors.New("session expired")
	// ErrOverloaded reports that too much is outstanding on this node; nothing was sent.
	ErrOverloaded = errors.New("overloaded")
	// ErrClosed reports that the node was closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid reports arguments that can never work; nothing was sent.
	ErrInvalid = errors.New("invalid")
)

// UnknownError reports a command that was handed to the cluster and was not
// answered. It Is [ErrUnknown] and the cause of the end of the call's context, or
// [ErrSessionExpired] if its session ended before the answer came.
type UnknownError struct {
	cmd    []byte
	client *Client
	cause  error
	then   []func(machine.Result) error
	result machine.Result
	known  bool
}

// Error says why the outcome is not known.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%v: the command was sent and not answered; Retry asks again: %v", ErrUnknown, e.cause)
}

// Is reports whether target is ErrUnknown.
func (e *UnknownError) Is(target error) bool { return target == ErrUnknown }

// Unwrap returns why the call ended.
func (e *UnknownError) Unwrap() error { return e.cause }

// Then adds what Retry does with the answer before it returns: an error of fn is
// Retry's. It is for those who build primitives, before they return the error.
func (e *UnknownError) Then(fn func(machine.Result) error) { e.then = append(e.then, fn) }

// Retry asks for the outcome of the same command: it is sent again under the same
// sequence, so it is applied now if it never was and its first answer comes back
// if it was. A nil error means that it was applied once and [UnknownError.Outcome]
// has its answer; a command that was refused is the error that the call itself
// would have returned. It fails with ErrUnknown when ctx ends, or when the answer is
// gone: with the session, or because later commands told the cluster that it was
// given up.
//
// One UnknownError is not for use by several goroutines at once.
func (e *UnknownError) Retry(ctx context.Context) error {
	r, err := e.client.send(ctx, &call{cmd: e.cmd, unsure: true, done: make(chan struct{})})
	if err == nil && r.Code == machine.Stale {
		err = &UnknownError{cmd: e.cmd, client: e.client, cause: errors.New("its answer was given up")}
	}
	if again, ok := errors.AsType[*UnknownError](err); ok {
		again.then = e.then
	}
	if err != nil {
		return err
	}
	e.result, e.known = r, true
	for _, fn := range e.then {
		if err := fn(r); err != nil {
			return err
		}
	}
	return nil
}

// Outcome returns the answer that a successful Retry brought.
func (e *UnknownError) Outcome() (machine.Result, bool) { return e.result, e.known }

// CompactedError reports that the history a watch would have to go on from is gone.
type CompactedError struct {
	Oldest machine.Rev // the watch can go on from here; 0 if this topic keeps no history
}

// Error says from where on there is history.
func (e *CompactedError) Error() string {
	return fmt.Sprintf("history is compacted up to revision %d: read the state again and watch from its revision", e.Oldest)
}

// endedError says how a call ended whose context ended.
type endedError struct {
	what  string
	kind  error // ErrNoQuorum or ErrClosed
	why   string
	cause error
	ctx   error
}

func (e *endedError) Error() string {
	s := fmt.Sprintf("%s: %v", e.what, e.kind)
	if e.why != "" {
		s += " (" + e.why + ")"
	}
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

func (e *endedError) Unwrap() []error {
	all := []error{e.kind}
	for _, err := range []error{e.cause, e.ctx} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

func noQuorum(ctx context.Context, what, why string) error {
	return &endedError{what: what, kind: ErrNoQuorum, why: why, cause: context.Cause(ctx), ctx: ctx.Err()}
}
