package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

const (
	errSharing        = syscall.Errno(32)  // ERROR_SHARING_VIOLATION
	errHandleDiskFull = syscall.Errno(39)  // ERROR_HANDLE_DISK_FULL
	errDiskFull       = syscall.Errno(112) // ERROR_DISK_FULL
)

func isFullNative(err error) bool {
	return errors.Is(err, errDiskFull) || errors.Is(err, errHandleDiskFull)
}

// SyncDir has nothing to do: NTFS journals names, and directories cannot be flushed.
func (osFS) SyncDir(string) error { return nil }

// lockFile opens the file without sharing it.
func lockFile(name string) (io.Closer, error) {
	path, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	h, err := syscall.CreateFile(path, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_ALWAYS, syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errSharing) {
		err = ErrLocked
	}
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}
