package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
)

// ErrPowerLost is the error of every operation while the power of a [Mem] is off, and
// for ever on files that were opened before the crash.
var ErrPowerLost = errors.New("the power is off")

// Op is one operation on a [Mem], as a fault sees it.
type Op struct {
	Kind  OpKind
	Name  string // of the file or directory
	Count uint64 // 1 for the first operation that changes the disk; 0 for reads
}

// OpKind says what an Op does.
type OpKind uint8

// The operations. Those up to OpLook change nothing and are not counted.
const (
	OpRead OpKind = iota + 1
	OpLook        // Open, List, Stat, Size
	OpWrite
	OpSync
	OpResize // Truncate, Preallocate
	OpCreate // Create, Lock
	OpRename
	OpRemove
	OpMkdir
	OpSyncDir
)

var opNames = [...]string{OpRead: "read", OpLook: "look", OpWrite: "write", OpSync: "sync", OpResize: "resize", OpCreate: "create", OpRename: "rename", OpRemove: "remove", OpMkdir: "mkdir", OpSyncDir: "syncdir"}

// String returns the name of the operation, for messages of tests.
func (k OpKind) String() string { return opNames[k] }

// Mem is a disk in memory. It forgets what was not synced when it crashes, and it can
// be told to fill up, to fail and to hang. Its behaviour depends on nothing but the
// calls, so a run of one goroutine repeats exactly.
type Mem struct {
	mu    sync.Mutex // guards what follows, and all inodes and directories
	dirs  map[string]*memDir
	locks map[string]bool
	life  uint64 // from 1 on, grows at each crash; what was opened in an earlier life is dead
	count uint64 // operations that changed the disk, or tried to
	halt  uint64 // the count at which the power goes off
	room  int64  // bytes that all files together may have
	fault func(Op) error
}

// NewMem returns an empty disk without limits and faults.
func NewMem() *Mem {
	return &Mem{dirs: map[string]*memDir{}, locks: map[string]bool{}, life: 1, halt: math.MaxUint64, room: math.MaxInt64}
}

// Count returns how many operations have changed the disk, or tried to. Whoever runs
// the same script again can [Mem.HaltAt] each of them.
func (m *Mem) Count() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count
}

// HaltAt turns the power off at the operation of that count, before it takes effect:
// it and all later ones return [ErrPowerLost] until [Mem.Crash] or [Mem.Tear].
func (m *Mem) HaltAt(count uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.halt = count
}

// Room limits the bytes of all files together; less than they have now is full.
// Operations beyond it fail as on a full disk, a write after what still fits.
func (m *Mem) Room(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.room = bytes
}

// Used returns the bytes of all files.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used()
}

// used counts what has a name. It is summed up each time, since a sum that is kept would
// have to follow every rename and every crash.
func (m *Mem) used() (n int64) {
	for _, d := range m.dirs {
		for _, ino := range d.names {
			n += ino.size
		}
	}
	return n
}

// Fault has fn asked before each operation; nil asks nobody. The operation fails with
// the error of fn and changes nothing, except that a failed Sync loses what it should
// have made durable, as on Linux. While fn blocks, the operation hangs, and no other.
func (m *Mem) Fault(fn func(Op) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = fn
}

// do runs one operation of a caller that lives in the given life; 0 is any.
func (m *Mem) do(kind OpKind, name string, life uint64, act func() error) error {
	err := m.ask(kind, name, life)
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		if life == 0 || life == m.life {
			err = act()
		} else {
			err = ErrPowerLost // while the fault hung
		}
	}
	if err != nil {
		return &fs.PathError{Op: kind.String(), Path: name, Err: err}
	}
	return nil
}

// ask counts the operation and hears the fault, which may block and so runs unlocked.
func (m *Mem) ask(kind OpKind, name string, life uint64) error {
	m.mu.Lock()
	op := Op{Kind: kind, Name: name}
	if kind > OpLook {
		m.count++
		op.Count = m.count
	}
	fault, dead := m.fault, m.count >= m.halt || life != 0 && life != m.life
	m.mu.Unlock()
	if dead {
		return ErrPowerLost
	}
	if fault != nil {
		return fault(op)
	}
	return nil
}

// Create makes or empties a file.
func (m *Mem) Create(name string) (File, error) {
	name = filepath.Clean(name)
	f := &memFile{mem: m, name: name}
	return f.opened(m.do(OpCreate, name, 0, func() error {
		d, err := m.dirOf(name)
		if err != nil {
			return err
		}
		f.life = m.life
		if f.ino = d.names[filepath.Base(name)]; f.ino != nil {
			f.ino.resize(0)
			return nil
		}
		f.ino = newInode()
		d.change(link(filepath.Base(name), f.ino))
		return nil
	}))
}

// Open opens an existing file.
func (m *Mem) Open(name string) (File, error) {
	name = filepath.Clean(name)
	f := &memFile{mem: m, name: name}
	return f.opened(m.do(OpLook, name, 0, func() (err error) {
		f.life = m.life
		f.ino, err = m.find(name)
		return err
	}))
}

// Rename renames within one directory.
func (m *Mem) Rename(from, to string) error {
	if err := sameDir(from, to); err != nil {
		return err
	}
	from, to = filepath.Clean(from), filepath.Clean(to)
	return m.do(OpRename, from, 0, func() error {
		if _, err := m.find(from); err != nil {
			return err
		}
		if m.dirs[to] != nil {
			return syscall.EISDIR
		}
		m.dirs[filepath.Dir(from)].change(rename(filepath.Base(from), filepath.Base(to)))
		return nil
	})
}

// Remove removes a file, or an empty directory (at once and durably).
func (m *Mem) Remove(name string) error {
	name = filepath.Clean(name)
	return m.do(OpRemove, name, 0, func() error {
		if d := m.dirs[name]; d != nil {
			if len(m.list(name)) > 0 {
				return syscall.ENOTEMPTY
			}
			delete(m.dirs, name)
			return nil
		}
		if _, err := m.find(name); err != nil {
			return err
		}
		m.dirs[filepath.Dir(name)].change(unlink(filepath.Base(name)))
		return nil
	})
}

// List returns the names of files and directories in dir.
func (m *Mem) List(dir string) (names []string, err error) {
	dir = filepath.Clean(dir)
	err = m.do(OpLook, dir, 0, func() error {
		if m.dirs[dir] == nil {
			return m.missing(dir)
		}
		names = m.list(dir)
		return nil
	})
	return names, err
}

func (m *Mem) list(dir string) []string {
	names := slices.Collect(maps.Keys(m.dirs[dir].names))
	for d := range m.dirs {
		if d != dir && filepath.Dir(d) == dir {
			names = append(names, filepath.Base(d))
		}
	}
	slices.Sort(names)
	return names
}

// MkdirAll makes directories, which a crash does not take away again.
func (m *Mem) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	return m.do(OpMkdir, dir, 0, func() error {
		for d := dir; ; d = filepath.Dir(d) {
			if ino, _ := m.find(d); ino != nil {
				return syscall.ENOTDIR
			}
			if m.dirs[d] == nil {
				m.dirs[d] = newMemDir()
			}
			if d == filepath.Dir(d) {
				return nil
			}
		}
	})
}

// SyncDir makes the names in dir durable.
func (m *Mem) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	return m.do(OpSyncDir, dir, 0, func() error {
		d := m.dirs[dir]
		if d == nil {
			return m.missing(dir)
		}
		d.sync()
		return nil
	})
}

// Stat says what a name stands for.
func (m *Mem) Stat(name string) (info Info, err error) {
	name = filepath.Clean(name)
	err = m.do(OpLook, name, 0, func() error {
		if info.Dir = m.dirs[name] != nil; info.Dir {
			return nil
		}
		ino, err := m.find(name)
		if err == nil {
			info.Bytes = ino.size
		}
		return err
	})
	return info, err
}

// Lock takes a name until the Closer is closed or the disk crashes.
func (m *Mem) Lock(name string) (io.Closer, error) {
	name = filepath.Clean(name)
	var life uint64
	err := m.do(OpCreate, name, 0, func() error {
		d, err := m.dirOf(name)
		if err != nil {
			return err
		}
		if m.locks[name] {
			return ErrLocked
		}
		if d.names[filepath.Base(name)] == nil {
			d.change(link(filepath.Base(name), newInode()))
		}
		life = m.life
		m.locks[name] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &memLock{mem: m, name: name, life: life}, nil
}

type memLock struct {
	mem  *Mem
	name string
	life uint64
}

// Close lets go, once. A lock of before a crash is nobody's already.
func (l *memLock) Close() error {
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	if l.life == l.mem.life {
		delete(l.mem.locks, l.name)
		l.life = 0
	}
	return nil
}

// dirOf returns the directory in which name can be a file.
func (m *Mem) dirOf(name string) (*memDir, error) {
	if m.dirs[name] != nil {
		return nil, syscall.EISDIR
	}
	d := m.dirs[filepath.Dir(name)]
	if d == nil {
		return nil, fs.ErrNotExist
	}
	return d, nil
}

// find returns the file of that name.
func (m *Mem) find(name string) (*inode, error) {
	if d := m.dirs[filepath.Dir(name)]; d != nil && d.names[filepath.Base(name)] != nil {
		return d.names[filepath.Base(name)], nil
	}
	if m.dirs[name] != nil {
		return nil, syscall.EISDIR
	}
	return nil, fs.ErrNotExist
}

// missing says why there is no such directory.
func (m *Mem) missing(dir string) error {
	if ino, _ := m.find(dir); ino != nil {
		return syscall.ENOTDIR
	}
	return fs.ErrNotExist
}

// grow asks for room.
func (m *Mem) grow(bytes int64) error {
	if free := m.room - m.used(); bytes > free {
		return fmt.Errorf("%d bytes wanted, %d free: %w", bytes, max(free, 0), syscall.ENOSPC)
	}
	return nil
}
