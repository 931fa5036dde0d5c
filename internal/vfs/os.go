package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	fileMode = 0o600 // the log holds what users store
	dirMode  = 0o700
)

// OS returns the file system of the operating system.
func OS() FS { return osFS{} }

// IsFull reports whether err says that the disk or the user's share of it is full.
func IsFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || isFullNative(err)
}

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	return openOS(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (osFS) Open(name string) (File, error) { return openOS(name, os.O_RDWR) }

func openOS(name string, flags int) (File, error) {
	f, err := os.OpenFile(name, flags, fileMode)
	if err != nil {
		return nil, err // a nil *os.File must not become a File that is not nil
	}
	return osFile{f}, nil
}

func (osFS) Rename(from, to string) error {
	if err := sameDir(from, to); err != nil {
		return err
	}
	return os.Rename(from, to)
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) List(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// MkdirAll syncs every parent that it gave a new name. What was there before it
// leaves alone: whoever made it has synced it, or it is not ours.
func (o osFS) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := o.MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.SyncDir(parent)
}

func (osFS) Stat(name string) (Info, error) {
	info, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return Info{Bytes: info.Size(), Dir: info.IsDir()}, nil
}

func (osFS) Lock(name string) (io.Closer, error) { return lockFile(name) }

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f osFile) pathError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: f.Name(), Err: err}
}

// fill extends the file by writing zeros: slower than a reservation, understood by
// every file system.
func (f osFile) fill(bytes int64) error {
	at, err := f.Size()
	if err != nil {
		return err
	}
	zeros := make([]byte, min(max(bytes-at, 0), 1<<20))
	for at < bytes {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), bytes-at)], at)
		if err != nil {
			return err
		}
		at += int64(n)
	}
	return nil
}
