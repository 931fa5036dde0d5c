// Package vfs is the file system as clatter's storage sees it: [OS] is the real one,
// [Mem] is one in memory that loses power, tears writes, fills up, fails and hangs.
//
// The interface is small on purpose: whatever is not here need not be simulated, and
// whatever storage does can be crashed at each single operation.
//
// # Invariants
//
// Durable is what was synced: the bytes of a file by [File.Sync], the names in a
// directory (made, renamed, removed) by [FS.SyncDir]. MkdirAll alone is durable when
// it returns. Everything else may be lost with the power, and in any subset: bytes in
// units of one sector, names one by one, a rename never by half.
//
// # Concurrency
//
// An FS may be used by many goroutines at once, and so may a File, except that what a
// reader sees of bytes that are being written is undefined.
//
// # Failure
//
// Errors are those of the operating system, wrapped in *fs.PathError: test them with
// errors.Is(err, fs.ErrNotExist) and the like, [IsFull] and [ErrLocked]. After an error
// of Sync the bytes written before it may be lost although a later Sync succeeds
// (Linux marks the pages clean), so the caller must not trust the file any more.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// SectorBytes is what a disk writes as a whole or not at all. Disks with larger units
// keep the promise too, since their units are multiples of it.
const SectorBytes = 512

// ErrLocked means that somebody, in this process or another, holds the lock.
var ErrLocked = errors.New("the file is locked by another owner")

// FS is a file system. Names are paths in the form of the operating system.
type FS interface {
	// Create makes an empty file, or empties the one of that name, for reading and
	// writing by this user alone.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Rename gives the file from the name to, and replaces a file of that name. Both
	// names are in one directory.
	Rename(from, to string) error
	// Remove takes the name away. Whoever has the file open can go on to use it.
	Remove(name string) error
	// List returns the names in dir, sorted.
	List(dir string) ([]string, error)
	// MkdirAll makes dir and what is missing above it, durably.
	MkdirAll(dir string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Stat says what a name stands for.
	Stat(name string) (Info, error)
	// Lock makes the file if need be and takes it exclusively, until the Closer is
	// closed or the process ends. It does not wait: held by another, it is ErrLocked.
	Lock(name string) (io.Closer, error)
}

// Info is what Stat knows.
type Info struct {
	Bytes int64 // of a file
	Dir   bool
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes the bytes and the size durable (fdatasync); the name is SyncDir's.
	Sync() error
	// Truncate cuts the file, or extends it by a hole of zeros.
	Truncate(bytes int64) error
	// Preallocate extends the file to so many bytes, the new ones zero, and reserves
	// their room: on file systems that overwrite in place, writing them cannot meet a
	// full disk. It never shortens.
	Preallocate(bytes int64) error
	// Size returns the bytes of the file.
	Size() (int64, error)
	io.Closer
}

// ReadFile returns the whole file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	read, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) && int64(read) == n {
		err = nil
	}
	return b[:read], err
}

// WriteFile replaces the file by data, durably and as a whole: after a crash at any
// moment the name stands for the old bytes or for the new ones. It writes name.tmp,
// so one caller at a time may write a name.
func WriteFile(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeSynced(fsys, tmp, data); err != nil {
		_ = fsys.Remove(tmp) // the first error is the one that matters
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

func writeSynced(fsys FS, name string, data []byte) (err error) {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return f.Sync()
}

// sameDir refuses what no storage of ours needs and what no directory can undo alone.
func sameDir(from, to string) error {
	if filepath.Dir(from) != filepath.Dir(to) {
		return fmt.Errorf("rename %s to %s: the directories differ", from, to)
	}
	return nil
}
