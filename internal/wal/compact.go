package wal

import (
	"errors"
	"fmt"

	"github.com/clatter-go/clatter/internal/vfs"
)

// maxSpares bounds the disk that waits for reuse.
const maxSpares = 2

// Compact lets entries up to index to go, as far as whole segments hold nothing else
// and the newest snapshot covers them: FirstIndex moves to the start of a segment. Two
// segments are kept for reuse, filled with zeros here so that appends need not.
func (l *Log) Compact(to uint64) error {
	l.upkeep.Lock()
	defer l.upkeep.Unlock()
	gone, err := l.retire(to)
	if err != nil {
		return err
	}
	for i, s := range gone {
		if err := l.dispose(s); err != nil {
			for _, s := range gone[i+1:] {
				err = errors.Join(err, s.file.Close())
			}
			return fmt.Errorf("compact the log to %d: %w", to, err)
		}
	}
	return nil
}

// retire takes segments out of the log, once no reader is in them. The last one stays,
// and with it the HardState and the marker: every segment starts with both.
func (l *Log) retire(to uint64) ([]*segment, error) {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	l.files.Lock()
	defer l.files.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	to = min(to, l.mark.index) // what no snapshot holds is nowhere else
	n := 0
	// Whatever is current in a segment lies before the first entry of the next one.
	for n+1 < len(l.segs) && l.segs[n+1].first <= to+1 {
		n++
	}
	gone := l.segs[:n:n]
	l.segs = append([]*segment(nil), l.segs[n:]...)
	l.index.compact(l.segs[0].first-1, gone)
	return gone, nil
}

// dispose takes the segment's name away, durably before the next one's: a log with a
// gap would be damage. Only then its bytes may go.
func (l *Log) dispose(s *segment) error {
	fsys := l.opts.FS
	if !l.wanted(s) {
		return errors.Join(s.file.Close(), fsys.Remove(s.path), fsys.SyncDir(l.opts.Dir))
	}
	path := l.opts.path(fmt.Sprintf("%016x%s", s.seq, spareSuffix))
	err := fsys.Rename(s.path, path)
	if err == nil {
		err = fsys.SyncDir(l.opts.Dir)
	}
	if err == nil {
		err = blank(s.file, 0, s.end)
	}
	if err == nil {
		err = s.file.Sync() // or the append that uses it would wait for all these zeros
	}
	if err != nil {
		return errors.Join(err, s.file.Close())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spares = append(l.spares, spare{path, s.file})
	return nil
}

// wanted reports whether s can be recycled: of the usual size, and not too many.
func (l *Log) wanted(s *segment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.size == l.opts.SegmentBytes && len(l.spares) < maxSpares
}

// blank fills a part of a file with zeros.
func blank(f vfs.File, from, to int64) error {
	b := make([]byte, min(to-from, 1<<20))
	for from < to {
		n, err := f.WriteAt(b[:min(int64(len(b)), to-from)], from)
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}
