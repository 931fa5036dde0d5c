package wal

import (
	"encoding/binary"

	"go.etcd.io/raft/v3/raftpb"
)

// Payload of a frame: one byte that says which parts follow, then the parts in this
// order. All numbers are uvarints.
//
//	HardState  term, vote, commit
//	marker     index, term, bytes of the ConfState, ConfState as protobuf
//	entries    count, index of the first; each: term, type, bytes of data, data
//
// Entries are by hand and not as protobuf, because appending must not allocate. Raft
// does not tell empty data from none, and neither does this.
const (
	hasHardState = 1 << iota
	hasMarker
	hasEntries
)

type hardState struct{ term, vote, commit uint64 }

// marker names a snapshot that is complete on disk.
type marker struct {
	index, term uint64
	conf        []byte
}

// record is a payload, taken apart.
type record struct {
	has     byte
	hard    hardState
	mark    marker
	entries entryReader
}

// appendRecord appends a payload; parts that are nil or empty are left out.
func appendRecord(b []byte, hard *hardState, mark *marker, ents []*raftpb.Entry) []byte {
	at := len(b)
	b = append(b, 0)
	if hard != nil {
		b[at] |= hasHardState
		b = binary.AppendUvarint(b, hard.term)
		b = binary.AppendUvarint(b, hard.vote)
		b = binary.AppendUvarint(b, hard.commit)
	}
	if mark != nil {
		b[at] |= hasMarker
		b = binary.AppendUvarint(b, mark.index)
		b = binary.AppendUvarint(b, mark.term)
		b = binary.AppendUvarint(b, uint64(len(mark.conf)))
		b = append(b, mark.conf...)
	}
	if len(ents) > 0 {
		b[at] |= hasEntries
		b = binary.AppendUvarint(b, uint64(len(ents)))
		b = binary.AppendUvarint(b, ents[0].GetIndex())
		for _, e := range ents {
			b = binary.AppendUvarint(b, e.GetTerm())
			b = binary.AppendUvarint(b, uint64(e.GetType()))
			b = binary.AppendUvarint(b, uint64(len(e.GetData())))
			b = append(b, e.GetData()...)
		}
	}
	return b
}

// parseRecord reports false if b is no payload. Its entries alias b and are checked as
// they are read.
func parseRecord(b []byte) (r record, ok bool) {
	if len(b) == 0 || b[0] >= hasEntries<<1 {
		return r, false
	}
	r.has = b[0]
	in := input{b: b[1:]}
	if r.has&hasHardState != 0 {
		r.hard = hardState{in.number(), in.number(), in.number()}
	}
	if r.has&hasMarker != 0 {
		r.mark = marker{index: in.number(), term: in.number()}
		r.mark.conf = in.take(in.number())
	}
	if r.has&hasEntries != 0 {
		r.entries.left = in.number()
		r.entries.index = in.number()
	}
	r.entries.in = in
	return r, !in.bad && (r.entries.left > 0) == (r.has&hasEntries != 0)
}

// entryReader reads the entries of one record.
type entryReader struct {
	in    input
	left  uint64
	index uint64 // of the next
}

// stored is an entry with the numbers that its fields point to: one allocation.
type stored struct {
	entry       raftpb.Entry
	term, index uint64
	kind        raftpb.EntryType
	data        []byte
}

// next reads into s and reports whether there was an entry. The data alias the record.
func (r *entryReader) next(s *stored) bool {
	if r.left == 0 {
		return false
	}
	s.index, s.term, s.kind = r.index, r.in.number(), raftpb.EntryType(r.in.number())
	s.data = r.in.take(r.in.number())
	r.left--
	r.index++
	return !r.in.bad
}

// clean reports whether the record was read to its end, and its end was there.
func (r *entryReader) clean() bool { return r.left == 0 && !r.in.bad && len(r.in.b) == 0 }

// message returns s as raft knows it.
func (s *stored) message() *raftpb.Entry {
	s.entry.Term, s.entry.Index = &s.term, &s.index
	if s.kind != raftpb.EntryNormal {
		s.entry.Type = &s.kind
	}
	if len(s.data) > 0 {
		s.entry.Data = s.data
	}
	return &s.entry
}

// input reads numbers and bytes, and remembers that it could not.
type input struct {
	b   []byte
	bad bool
}

func (in *input) number() uint64 {
	v, n := binary.Uvarint(in.b)
	if n <= 0 {
		in.bad, in.b = true, nil
		return 0
	}
	in.b = in.b[n:]
	return v
}

func (in *input) take(n uint64) []byte {
	if n > uint64(len(in.b)) {
		in.bad, in.b = true, nil
		return nil
	}
	b := in.b[:n:n]
	in.b = in.b[n:]
	return b
}
