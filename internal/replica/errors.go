package replica

import (
	"errors"
	"fmt"
)

// FatalError ends a replica: raft, its storage or the machine found an invariant
// broken. The shell stops this replica and keeps its directory for inspection.
type FatalError struct {
	ID    uint64 // raft id of the replica
	Doing string
	Err   error
}

// Error says what was being done and what was broken.
func (e *FatalError) Error() string {
	return fmt.Sprintf("replica %x stops: %s: %v", e.ID, e.Doing, e.Err)
}

// Unwrap returns the cause, an error of the storage perhaps.
func (e *FatalError) Unwrap() error { return e.Err }

// ErrRefused is wrapped by the errors of messages that no correct peer sends. The
// replica is as it was.
var ErrRefused = errors.New("the message is refused")

// contain turns a panic of the libraries below into the end of the replica. It is
// deferred itself: recover sees nothing from one call further down.
func (r *Replica) contain(doing string) {
	if p := recover(); p != nil {
		r.err = r.fatal(doing, p)
	}
}

func (r *Replica) fatal(doing string, cause any) error {
	err, ok := cause.(error)
	if !ok {
		err = fmt.Errorf("%v", cause)
	}
	return &FatalError{ID: r.id, Doing: doing, Err: err}
}
