//go:build unix

package vfs

import (
	"errors"
	"io"
	"os"
)

// isFullNative adds nothing: ENOSPC and EDQUOT are the native errors.
func isFullNative(error) bool { return false }

// SyncDir makes names durable: a directory is a file that can be synced.
func (osFS) SyncDir(dir string) (err error) {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

func lockFile(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := flock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
