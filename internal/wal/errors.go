package wal

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound means that the directory holds no log. A voter that has spoken
	// before must not make a new one under the same raft id.
	ErrNotFound = errors.New("there is no log")
	// ErrPoisoned means that a write or a sync failed since the log was opened, so
	// nothing more is acknowledged. Close it and open it again: that verifies the disk.
	ErrPoisoned = errors.New("the log takes no more writes after a disk error")
	// ErrForeign means that the files belong to another raft id or another cluster.
	ErrForeign = errors.New("the log is another replica's")
	// ErrClosed means that the log was closed.
	ErrClosed = errors.New("the log is closed")
	// ErrInvalid means that the caller broke a rule of raft; nothing was written.
	ErrInvalid = errors.New("invalid append")
)

// CorruptError reports bytes on disk that are not those that were written. Nothing was
// repaired or removed. A replica whose log is damaged must not vote again under its
// raft id.
type CorruptError struct {
	File   string // path
	Offset int64
	Reason string
}

// Error names the file, the place and what can be done.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s is damaged at byte %d: %s: restore the directory from a copy taken while the node was down, or empty it so that the node comes back as a new voter", e.File, e.Offset, e.Reason)
}

// FullError reports that the disk has no room for the next segment or for a snapshot.
// Nothing was written, and the same call succeeds once there is room.
type FullError struct {
	File  string // that was to be made
	Bytes int64  // that it needs; 0 if unknown
	Err   error  // of the operating system
}

// Error says what is needed.
func (e *FullError) Error() string {
	return fmt.Sprintf("no room for %s (%d bytes): %v: the log goes on once there is", e.File, e.Bytes, e.Err)
}

// Unwrap returns the error of the operating system.
func (e *FullError) Unwrap() error { return e.Err }
