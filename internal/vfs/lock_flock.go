//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// flock belongs to the open file, not to the process: two nodes in one process
// exclude each other as well, and the kernel lets go when the process dies.
func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			err = ErrLocked
		case errors.Is(err, syscall.EINTR):
			continue
		}
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
}
