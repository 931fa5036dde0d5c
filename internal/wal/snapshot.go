package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/vfs"
)

// A snapshot is one file, little endian:
//
//	head    magic 8 | version 4 | bytes of conf 4 | raft id 8 | index 8 | term 8 | cluster 32 | conf | CRC32C
//	chunk   bytes 4, 1 to chunkBytes | CRC32C | data
//	footer  0 4 | CRC32C | chunks 8 | bytes of all data 8
//
// Each CRC32C of a chunk or footer is over its other fields and seeded with the one
// before it: the file is a chain like the log.
const (
	snapshotMagic  = "clattsnp"
	snapshotHead   = 72 // without conf and CRC
	snapshotSuffix = ".snap"
	snapshotTmp    = "snapshot" + tmpSuffix

	chunkBytes = 256 << 10
	chunkHead  = 8
	footer     = 24
	maxConf    = 1 << 20
)

func snapshotName(index uint64) string { return fmt.Sprintf("%016x%s", index, snapshotSuffix) }

// SaveSnapshot writes what write says as the state after entry index, under the
// configuration conf of that moment, and then records it in the log: file, sync,
// rename, sync of the directory, marker, sync. Older snapshots go. It is
// raft.ErrSnapOutOfDate unless index is above that of the newest one, and
// raft.ErrUnavailable unless the log has the entry. An error of write is returned as it
// is; a full disk is a [FullError]. In both cases the log is as before.
func (l *Log) SaveSnapshot(index uint64, conf *raftpb.ConfState, write func(io.Writer) error) error {
	l.upkeep.Lock()
	defer l.upkeep.Unlock()
	mark, old, err := l.nextMark(index, conf)
	if err != nil {
		return err
	}
	if err := l.writeSnapshot(mark, write); err != nil {
		return err
	}
	if err := l.setMark(mark); err != nil {
		// After poison the marker may be on disk or not; Open will see, and tidy up.
		if full := (*FullError)(nil); errors.As(err, &full) {
			_ = l.opts.FS.Remove(l.opts.path(snapshotName(index)))
		}
		return err
	}
	l.files.Lock() // nobody is between reading the mark and opening its file
	defer l.files.Unlock()
	path := l.opts.path(snapshotName(old))
	if err := l.opts.FS.Remove(path); err != nil {
		return fmt.Errorf("remove the snapshot before this one: %w", err)
	}
	return nil
}

func (l *Log) nextMark(index uint64, conf *raftpb.ConfState) (*marker, uint64, error) {
	if err := l.usable(); err != nil {
		return nil, 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if index <= l.mark.index {
		return nil, 0, raft.ErrSnapOutOfDate
	}
	term, err := l.index.term(index)
	if err != nil {
		return nil, 0, err
	}
	b, err := proto.Marshal(conf)
	return &marker{index, term, b}, l.mark.index, err
}

// setMark writes the marker, with a HardState that is not behind it. The file must be
// durable by now: a marker without its file is a log that cannot be opened.
func (l *Log) setMark(mark *marker) error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	hard := l.hard
	hard.commit = max(hard.commit, mark.index)
	if _, err := l.put(&hard, mark, nil); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hard, l.mark, l.lagging = hard, *mark, false
	return nil
}

// writeSnapshot makes the file durable under its name: a file of that name is complete,
// whenever the power goes.
func (l *Log) writeSnapshot(mark *marker, write func(io.Writer) error) error {
	tmp, path := l.opts.path(snapshotTmp), l.opts.path(snapshotName(mark.index))
	err := l.fillSnapshot(tmp, mark, write)
	if err == nil {
		err = l.opts.FS.Rename(tmp, path)
	}
	if err != nil {
		_ = l.opts.FS.Remove(tmp) // the first error is the one that matters
		if vfs.IsFull(err) {
			return &FullError{File: path, Err: err}
		}
		return err
	}
	return l.opts.FS.SyncDir(l.opts.Dir)
}

func (l *Log) fillSnapshot(tmp string, mark *marker, write func(io.Writer) error) (err error) {
	file, err := l.opts.FS.Create(tmp)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	head := mark.appendHead(nil, &l.opts)
	w := &snapshotWriter{file: file, buf: head, start: len(head), sum: binary.LittleEndian.Uint32(head[len(head)-4:])}
	w.begin()
	if err := write(w); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		return err
	}
	return file.Sync()
}

func (m *marker) appendHead(b []byte, o *Options) []byte {
	at := len(b)
	b = append(b, snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.conf)))
	b = binary.LittleEndian.AppendUint64(b, o.RaftID)
	b = binary.LittleEndian.AppendUint64(b, m.index)
	b = binary.LittleEndian.AppendUint64(b, m.term)
	b = append(b, o.Cluster[:]...)
	b = append(b, m.conf...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

// snapshotWriter cuts a stream into chunks. buf holds what is not yet in the file, and
// in it the chunk that is being filled begins at start.
type snapshotWriter struct {
	file   vfs.File
	off    int64
	buf    []byte
	start  int
	sum    uint32
	chunks uint64
	total  uint64
	err    error
}

// begin leaves room for the head of the next chunk.
func (w *snapshotWriter) begin() {
	w.start = len(w.buf)
	w.buf = append(w.buf, zeros[:chunkHead]...)
}

// Write fills chunks. After an error it writes nothing more.
func (w *snapshotWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 && w.err == nil {
		k := min(len(p), chunkBytes-(len(w.buf)-w.start-chunkHead))
		w.buf = append(w.buf, p[:k]...)
		p, n = p[k:], n+k
		if len(w.buf)-w.start-chunkHead == chunkBytes {
			w.flush()
		}
	}
	return n, w.err
}

// flush completes the chunk and writes the buffer.
func (w *snapshotWriter) flush() {
	chunk := w.buf[w.start:]
	binary.LittleEndian.PutUint32(chunk, uint32(len(chunk)-chunkHead))
	w.sum = chunkSum(w.sum, chunk[:4], chunk[chunkHead:])
	binary.LittleEndian.PutUint32(chunk[4:], w.sum)
	w.chunks++
	w.total += uint64(len(chunk) - chunkHead)
	w.write()
	w.begin()
}

// write brings the buffer to the file, unless an earlier write failed.
func (w *snapshotWriter) write() {
	if w.err == nil {
		_, w.err = w.file.WriteAt(w.buf, w.off)
		w.off += int64(len(w.buf))
	}
	w.buf = w.buf[:0]
}

// finish writes the footer, without which the file is cut short.
func (w *snapshotWriter) finish() error {
	if len(w.buf)-w.start > chunkHead {
		w.flush()
	}
	f := w.buf[w.start:]
	f = binary.LittleEndian.AppendUint64(f, w.chunks)
	f = binary.LittleEndian.AppendUint64(f, w.total)
	binary.LittleEndian.PutUint32(f[4:], chunkSum(w.sum, f[:4], f[chunkHead:]))
	w.buf = append(w.buf[:w.start], f...)
	w.write()
	return w.err
}

// chunkSum covers the size too: a footer must not pass for a chunk, or a chunk for one.
func chunkSum(seed uint32, size, data []byte) uint32 {
	return crc32.Update(crc32.Update(seed, castagnoli, size), castagnoli, data)
}

// OpenSnapshot returns the newest snapshot. The reader verifies as it goes: it returns
// io.EOF only if the footer was there and right, else a [CorruptError]; until then the
// caller must not use what it read. The first snapshot of a log has no bytes. A
// snapshot that is replaced meanwhile can be read to its end.
func (l *Log) OpenSnapshot() (*raftpb.SnapshotMetadata, io.ReadCloser, error) {
	l.files.RLock()
	defer l.files.RUnlock()
	l.mu.Lock()
	mark, closed := l.mark, l.closed
	l.mu.Unlock()
	if closed {
		return nil, nil, ErrClosed
	}
	meta, err := mark.metadata()
	if err != nil {
		return nil, nil, err
	}
	r, err := l.opts.openSnapshot(&mark)
	if err != nil {
		return nil, nil, err
	}
	return meta, r, nil
}

// verifySnapshot reads the snapshot that the log names.
func (l *Log) verifySnapshot() error {
	r, err := l.opts.openSnapshot(&l.mark)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}
