package wal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/clatter-go/clatter/internal/vfs"
)

// snapshotReader hands out chunks that have been verified.
type snapshotReader struct {
	file   vfs.File
	path   string
	size   int64
	off    int64
	sum    uint32
	chunks uint64
	total  uint64
	buf    []byte // for one chunk
	ready  []byte // of it: verified, not yet handed out
	err    error  // what Read returns once ready is empty
}

// openSnapshot opens the file that mark names and verifies its head.
func (o *Options) openSnapshot(mark *marker) (*snapshotReader, error) {
	path := o.path(snapshotName(mark.index))
	file, err := o.FS.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &CorruptError{File: path, Reason: "the snapshot that the log begins with is missing"}
	}
	if err != nil {
		return nil, err
	}
	r := &snapshotReader{file: file, path: path}
	if r.size, err = file.Size(); err == nil {
		err = r.head(mark, o)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

// head reads the head. Whose file it is comes before whether it is the right one,
// because an operator who mixed up directories needs to hear that.
func (r *snapshotReader) head(mark *marker, o *Options) error {
	b, err := r.take(snapshotHead)
	if err != nil {
		return err
	}
	b = bytes.Clone(b)
	if string(b[:8]) != snapshotMagic {
		return r.damaged("the file does not start as a snapshot")
	}
	conf := binary.LittleEndian.Uint32(b[12:])
	if conf > maxConf {
		return r.damaged("the head of the snapshot is broken")
	}
	rest, err := r.take(int(conf) + 4)
	if err != nil {
		return err
	}
	rest = bytes.Clone(rest)
	r.sum = binary.LittleEndian.Uint32(rest[conf:])
	if crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, rest[:conf]) != r.sum {
		return r.damaged("the head of the snapshot fails its checksum")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return fmt.Errorf("%s has format %d, this program knows %d: use the program that wrote it", r.path, v, formatVersion)
	}
	if err := owned(r.path, binary.LittleEndian.Uint64(b[16:]), b[40:72], o); err != nil {
		return err
	}
	// An older snapshot under this name would be a state from which the log does not go on.
	if !bytes.Equal(mark.appendHead(nil, o), append(b, rest...)) {
		return r.damaged("it is not the snapshot that the log was written with")
	}
	return nil
}

// take reads the next n bytes, valid until the next call.
func (r *snapshotReader) take(n int) ([]byte, error) {
	if int64(n) > r.size-r.off {
		return nil, r.damaged("the snapshot is cut short")
	}
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	b := r.buf[:n]
	if k, err := r.file.ReadAt(b, r.off); k < n {
		return nil, fmt.Errorf("read %s at %d: %w", r.path, r.off, err)
	}
	r.off += int64(n)
	return b, nil
}

// Read hands out the body.
func (r *snapshotReader) Read(p []byte) (int, error) {
	for len(r.ready) == 0 && r.err == nil {
		r.err = r.chunk()
	}
	if len(r.ready) == 0 {
		return 0, r.err
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// chunk verifies the next chunk, or the footer and the end, which is io.EOF.
func (r *snapshotReader) chunk() error {
	b, err := r.take(chunkHead)
	if err != nil {
		return err
	}
	n, sum := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	if n > chunkBytes { // before memory is made for it
		return r.damaged("a chunk is longer than any")
	}
	size := binary.LittleEndian.AppendUint32(nil, n)
	data := int(n)
	if n == 0 {
		data = footer - chunkHead
	}
	if b, err = r.take(data); err != nil {
		return err
	}
	if r.sum = chunkSum(r.sum, size, b); r.sum != sum {
		return r.damaged("a chunk fails its checksum")
	}
	if n > 0 {
		r.chunks++
		r.total += uint64(n)
		r.ready = b
		return nil
	}
	if binary.LittleEndian.Uint64(b) != r.chunks || binary.LittleEndian.Uint64(b[8:]) != r.total || r.off != r.size {
		return r.damaged("the footer counts other chunks")
	}
	return io.EOF
}

func (r *snapshotReader) damaged(reason string) error {
	return &CorruptError{File: r.path, Offset: r.off, Reason: reason}
}

// Close closes the file.
func (r *snapshotReader) Close() error { return r.file.Close() }
