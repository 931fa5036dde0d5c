package vfs

import (
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"
)

// inode is the bytes of a file: those that everybody reads, and those that would
// survive. Bytes past the end of a slice and before the size are zero.
type inode struct {
	size  int64
	bytes []byte
	dirty map[int64]bool // sectors of bytes that differ from safe, or may

	safeSize int64
	safe     []byte
}

func newInode() *inode { return &inode{dirty: map[int64]bool{}} }

func (i *inode) write(b []byte, at int64) {
	i.size = max(i.size, at+int64(len(b)))
	i.bytes = extend(i.bytes, at+int64(len(b)))
	copy(i.bytes[at:], b)
	i.touch(at, at+int64(len(b)))
}

// touch marks the sectors of [from, to) as not durable.
func (i *inode) touch(from, to int64) {
	for s := from / SectorBytes; s*SectorBytes < to; s++ {
		i.dirty[s] = true
	}
}

func (i *inode) resize(size int64) {
	if cut := int64(len(i.bytes)); size < cut {
		i.touch(size, cut)
		clear(i.bytes[size:]) // a later extension must find zeros there
		i.bytes = i.bytes[:size]
	}
	i.size = size
}

// sync makes everything durable.
func (i *inode) sync() {
	i.safeSize = i.size
	for s := range i.dirty {
		i.keep(s)
	}
	clear(i.dirty)
	i.safe = i.safe[:min(int64(len(i.safe)), i.size)]
}

// keep makes one sector durable.
func (i *inode) keep(sector int64) {
	from := sector * SectorBytes
	to := min(from+SectorBytes, i.size)
	if to <= from {
		return
	}
	i.safeSize = max(i.safeSize, to)
	i.safe = extend(i.safe, to)
	n := 0
	if from < int64(len(i.bytes)) {
		n = copy(i.safe[from:to], i.bytes[from:])
	}
	clear(i.safe[from+int64(n) : to])
}

// extend grows b with zeros, by doubling.
func extend(b []byte, size int64) []byte {
	if n := size - int64(len(b)); n > 0 {
		return append(b, make([]byte, n)...)
	}
	return b
}

// memFile is an open file of a [Mem].
type memFile struct {
	mem    *Mem
	name   string
	ino    *inode
	life   uint64 // of the disk in which it was opened
	closed atomic.Bool
}

func (f *memFile) opened(err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (f *memFile) do(kind OpKind, act func() error) error {
	if f.closed.Load() {
		return &fs.PathError{Op: kind.String(), Path: f.name, Err: fs.ErrClosed}
	}
	return f.mem.do(kind, f.name, f.life, act)
}

func (f *memFile) ReadAt(b []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, &fs.PathError{Op: "read", Path: f.name, Err: syscall.EINVAL}
	}
	err = f.do(OpRead, func() error {
		left := b[:min(int64(len(b)), max(f.ino.size-at, 0))]
		if at < int64(len(f.ino.bytes)) {
			n = copy(left, f.ino.bytes[at:])
		}
		clear(left[n:])
		n = len(left)
		return nil
	})
	if err == nil && n < len(b) {
		err = io.EOF
	}
	return n, err
}

// WriteAt writes what fits on a disk that fills up, in whole sectors.
func (f *memFile) WriteAt(b []byte, at int64) (n int, err error) {
	if at < 0 {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: syscall.EINVAL}
	}
	err = f.do(OpWrite, func() error {
		if more := at + int64(len(b)) - f.ino.size; more > 0 {
			if full := f.mem.grow(more); full != nil {
				end := f.ino.size + max(f.mem.room-f.mem.used(), 0)
				n = int(max(end/SectorBytes*SectorBytes-at, 0))
				f.ino.write(b[:n], at)
				return full
			}
		}
		f.ino.write(b, at)
		n = len(b)
		return nil
	})
	return n, err
}

// Sync makes the bytes durable. If a fault says no, they are lost for good, though
// readers still see them: the pages count as clean from then on.
func (f *memFile) Sync() error {
	reached := false
	err := f.do(OpSync, func() error {
		reached = true
		f.ino.sync()
		return nil
	})
	f.mem.mu.Lock()
	defer f.mem.mu.Unlock()
	alive := f.life == f.mem.life && f.mem.count < f.mem.halt
	if err != nil && !reached && alive && !f.closed.Load() {
		clear(f.ino.dirty)
	}
	return err
}

func (f *memFile) Truncate(bytes int64) error {
	return f.do(OpResize, func() error { return f.resize(bytes) })
}

func (f *memFile) Preallocate(bytes int64) error {
	return f.do(OpResize, func() error { return f.resize(max(bytes, f.ino.size)) })
}

// resize is both Truncate and Preallocate: a disk in memory has no holes to tell apart.
func (f *memFile) resize(bytes int64) error {
	if bytes < 0 {
		return syscall.EINVAL
	}
	if err := f.mem.grow(bytes - f.ino.size); bytes > f.ino.size && err != nil {
		return err
	}
	f.ino.resize(bytes)
	return nil
}

func (f *memFile) Size() (size int64, err error) {
	err = f.do(OpLook, func() error {
		size = f.ino.size
		return nil
	})
	return size, err
}

// Close succeeds in every life: a process that the power left can still tidy up.
func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}
