package membership

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// maxMeta bounds what a node tells of itself, encoded. memberlist takes 512 bytes and
// panics beyond; half of it keeps a full state exchange of 1000 nodes near 300 KiB.
const maxMeta = 256

// metaVersion is raised only for a change that older nodes must not misread. New
// fields are appended instead: a reader ignores what follows the fields it knows.
const metaVersion = 1

// meta is what a node tells of itself. It travels in every alive message:
//
//	u8 version | u8 flags | u8 phase | u64 cluster | u32 digest | uvarint raft id |
//	uvarint term | string zone | uvarint n, then n labels as string key, string value
//
// Integers are big-endian, a string is a uvarint length and its bytes.
type meta struct {
	note    Note
	leaving bool
	zone    string
	labels  map[string]string
}

// Flags of a meta.
const (
	flagLeaving = 1 << iota
	flagVoter
	flagLeader
	flagNoDir
	flagEligible
)

var (
	errMeta    = errors.New("meta is malformed")
	errVersion = errors.New("meta is of a newer version")
)

// append codes m in one way only, whatever the order of its labels in memory.
func (m meta) append(b []byte) []byte {
	b = append(b, metaVersion, m.flags(), m.note.Phase)
	b = binary.BigEndian.AppendUint64(b, m.note.Cluster)
	b = binary.BigEndian.AppendUint32(b, m.note.Digest)
	b = binary.AppendUvarint(b, m.note.RaftID)
	b = binary.AppendUvarint(b, m.note.Term)
	b = appendString(b, m.zone)
	b = binary.AppendUvarint(b, uint64(len(m.labels)))
	for _, k := range slices.Sorted(maps.Keys(m.labels)) {
		b = appendString(appendString(b, k), m.labels[k])
	}
	return b
}

func (m meta) flags() (f byte) {
	for i, on := range []bool{m.leaving, m.note.Voter, m.note.Leader, m.note.NoDir, m.note.Eligible} {
		if on {
			f |= 1 << i
		}
	}
	return f
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// checkSize refuses a zone and labels that would not fit beside the largest note.
func (m meta) checkSize() error {
	m.note = Note{RaftID: 1<<64 - 1, Term: 1<<64 - 1}
	if n := len(m.append(nil)); n > maxMeta {
		return fmt.Errorf("zone and labels take %d bytes of gossip, %d too many: use fewer or shorter labels", n, n-maxMeta)
	}
	return nil
}

// decodeMeta reads what append wrote, or what a later version appends to it.
func decodeMeta(b []byte) (meta, error) {
	r := reader{rest: b}
	if v := r.byte(); r.bad || v == 0 {
		return meta{}, errMeta
	} else if v > metaVersion {
		return meta{}, errVersion
	}
	flags := r.byte()
	m := meta{leaving: flags&flagLeaving != 0}
	m.note = Note{
		Voter:    flags&flagVoter != 0,
		Leader:   flags&flagLeader != 0,
		NoDir:    flags&flagNoDir != 0,
		Eligible: flags&flagEligible != 0,
		Phase:    r.byte(),
		Cluster:  r.uint64(),
		Digest:   r.uint32(),
		RaftID:   r.uvarint(),
		Term:     r.uvarint(),
	}
	m.zone = r.string()
	if n := r.uvarint(); n > 0 && !r.bad {
		m.labels = map[string]string{}
		for range min(n, maxMeta) {
			k := r.string()
			m.labels[k] = r.string()
		}
	}
	if r.bad {
		return meta{}, errMeta
	}
	return m, nil
}

// reader takes fields off the front of rest. Once a field is missing it is bad and
// yields zeros.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.take(uint64(n))
	return v
}

func (r *reader) string() string { return string(r.take(r.uvarint())) }
