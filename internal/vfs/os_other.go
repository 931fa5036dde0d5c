//go:build !linux

package vfs

// Sync is the strongest that package os has: on macOS F_FULLFSYNC.
func (f osFile) Sync() error { return f.File.Sync() }

// Preallocate writes zeros.
func (f osFile) Preallocate(bytes int64) error { return f.fill(bytes) }
