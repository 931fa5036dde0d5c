package vfs

import (
	"errors"
	"runtime"
	"syscall"
)

// Sync is fdatasync: the size is made durable with the bytes, the times are not.
func (f osFile) Sync() error {
	return f.pathError("fdatasync", f.retry(syscall.Fdatasync))
}

// Preallocate reserves with fallocate, or writes zeros where that is unknown.
func (f osFile) Preallocate(bytes int64) error {
	if n, err := f.Size(); err != nil || n >= bytes {
		return err
	}
	err := f.retry(func(fd int) error { return syscall.Fallocate(fd, 0, 0, bytes) })
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		return f.fill(bytes)
	}
	return f.pathError("fallocate", err)
}

// retry repeats a call that a signal interrupted, as package os does for its own.
func (f osFile) retry(call func(fd int) error) error {
	for {
		err := call(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			runtime.KeepAlive(f.File)
			return err
		}
	}
}
