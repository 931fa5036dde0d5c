package wal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Head of a segment, little endian.
//
//	0  segmentMagic
//	8  formatVersion
//	12 chain at the end of the segment before
//	16 bytes of the file
//	24 sequence, from 1 on
//	32 raft id
//	40 index of the first entry that was to come when the segment began
//	48 term of the entry before it
//	56 cluster
//	88 0
//	92 CRC32C of the bytes before: the salt of the segment's frames
const (
	segmentMagic  = "clattwal"
	formatVersion = 1
	segmentHead   = 96

	segmentSuffix = ".wal"
	spareSuffix   = ".spare"
	tmpSuffix     = ".tmp"
	segmentTmp    = "segment" + tmpSuffix
)

// segment is one file of the log.
type segment struct {
	path  string
	file  vfs.File
	seq   uint64
	size  int64
	first uint64
	term  uint64 // of the entry before first
	chain uint32 // at its start
	salt  uint32

	end int64 // where the next frame goes; the log's mu guards it
}

func segmentName(seq uint64) string { return fmt.Sprintf("%016x%s", seq, segmentSuffix) }

// numbered returns the number of a file name of 16 hexadecimal digits and the suffix.
func numbered(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	return n, err == nil
}

// appendHead writes the head and takes the salt from it.
func (s *segment) appendHead(b []byte, o *Options) []byte {
	at := len(b)
	b = append(b, segmentMagic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint32(b, s.chain)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.size))
	b = binary.LittleEndian.AppendUint64(b, s.seq)
	b = binary.LittleEndian.AppendUint64(b, o.RaftID)
	b = binary.LittleEndian.AppendUint64(b, s.first)
	b = binary.LittleEndian.AppendUint64(b, s.term)
	b = append(b, o.Cluster[:]...)
	b = append(b, 0, 0, 0, 0)
	s.salt = crc32.Checksum(b[at:], castagnoli)
	return binary.LittleEndian.AppendUint32(b, s.salt)
}

// parseSegmentHead reads the head of the file at path, and refuses what is not ours.
func parseSegmentHead(b []byte, path string, o *Options) (*segment, error) {
	damaged := func(reason string) error { return &CorruptError{File: path, Reason: reason} }
	if len(b) < segmentHead {
		return nil, damaged(fmt.Sprintf("the file has %d bytes", len(b)))
	}
	b = b[:segmentHead]
	if string(b[:8]) != segmentMagic {
		return nil, damaged("the file does not start as a segment")
	}
	s := &segment{path: path, salt: binary.LittleEndian.Uint32(b[92:])}
	if crc32.Checksum(b[:92], castagnoli) != s.salt {
		return nil, damaged("the head of the segment fails its checksum")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != formatVersion {
		return nil, fmt.Errorf("%s has format %d, this program knows %d: use the program that wrote it", path, v, formatVersion)
	}
	s.chain = binary.LittleEndian.Uint32(b[12:])
	s.size = int64(binary.LittleEndian.Uint64(b[16:]))
	s.seq = binary.LittleEndian.Uint64(b[24:])
	s.first = binary.LittleEndian.Uint64(b[40:])
	s.term = binary.LittleEndian.Uint64(b[48:])
	return s, owned(path, binary.LittleEndian.Uint64(b[32:]), b[56:88], o)
}

// owned refuses a file of another replica.
func owned(path string, id uint64, cluster []byte, o *Options) error {
	if !bytes.Equal(cluster, o.Cluster[:]) {
		return fmt.Errorf("%s: %w: it belongs to cluster %x, not to %x: check the directory", path, ErrForeign, cluster[:4], o.Cluster[:4])
	}
	if id != o.RaftID {
		return fmt.Errorf("%s: %w: it belongs to raft id %x, not to %x: check the directory", path, ErrForeign, id, o.RaftID)
	}
	return nil
}
