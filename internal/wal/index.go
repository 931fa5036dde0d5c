package wal

import (
	"slices"
	"sort"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// index knows, without the disk, which entries the log has, their terms, the newest of
// them, and where to look for the others.
type index struct {
	base     uint64 // the entry before the first one
	baseTerm uint64
	last     uint64
	runs     []run   // of (base, last], ascending
	points   []point // ascending in index and in place

	tail      []*raftpb.Entry // the newest entries, up to last
	dropped   int             // of the front of tail: already let go
	tailBytes int64
}

// run is entries of one term, from first on. By the Log Matching property (Raft thesis,
// section 3.5) index and term name an entry, so runs tell current entries on disk from
// replaced ones.
type run struct{ first, term uint64 }

// point is the place of a frame with entries. There is one for the first in each
// segment that was not replaced since, and one every pointStride bytes.
type point struct {
	index uint64 // its first entry
	seg   *segment
	off   int64
	chain uint32 // before it
}

const (
	pointStride  = 64 << 10
	entryInsides = 128 // bytes of an entry in memory beside its data, roughly
)

func (x *index) term(i uint64) (uint64, error) {
	switch {
	case i < x.base:
		return 0, raft.ErrCompacted
	case i == x.base:
		return x.baseTerm, nil
	case i > x.last:
		return 0, raft.ErrUnavailable
	}
	return termOf(x.runs, i), nil
}

// termOf returns the term of i, or 0 if it lies before all runs.
func termOf(runs []run, i uint64) uint64 {
	n := sort.Search(len(runs), func(k int) bool { return runs[k].first > i })
	if n == 0 {
		return 0
	}
	return runs[n-1].term
}

// begin prepares for a frame at p whose first entry is p.index: what it replaces is
// forgotten, and p is remembered if it is worth it.
func (x *index) begin(p point) {
	if p.index <= x.last {
		x.truncate(p.index)
	}
	if n := len(x.points); n == 0 || x.points[n-1].seg != p.seg || p.off-x.points[n-1].off >= pointStride {
		x.points = append(x.points, p)
	}
}

// truncate forgets entries from i on.
func (x *index) truncate(i uint64) {
	x.last = i - 1
	for n := len(x.runs); n > 0 && x.runs[n-1].first >= i; n-- {
		x.runs = x.runs[:n-1]
	}
	for n := len(x.points); n > 0 && x.points[n-1].index >= i; n-- {
		x.points = x.points[:n-1]
	}
	for n := len(x.tail); n > x.dropped && x.tail[n-1].GetIndex() >= i; n-- {
		x.tailBytes -= weight(x.tail[n-1])
		x.tail[n-1] = nil
		x.tail = x.tail[:n-1]
	}
}

// add appends the entry behind last. Entries up to base have been compacted; a replay
// meets them where a frame replaced entries from before it.
func (x *index) add(i, term uint64) {
	x.last = i
	switch {
	case i < x.base:
	case i == x.base:
		x.baseTerm = term
	case len(x.runs) == 0 || x.runs[len(x.runs)-1].term != term:
		x.runs = append(x.runs, run{i, term})
	}
}

// keep puts the entry, which was added last, into the tail, and lets older ones go
// beyond limit bytes.
func (x *index) keep(e *raftpb.Entry, limit int64) {
	x.tail = append(x.tail, e)
	x.tailBytes += weight(e)
	for x.tailBytes > limit && len(x.tail)-x.dropped > 1 {
		x.dropOldest()
	}
}

func (x *index) dropOldest() {
	x.tailBytes -= weight(x.tail[x.dropped])
	x.tail[x.dropped] = nil
	x.dropped++
	if x.dropped > len(x.tail)/2 { // moves each entry once, on average
		n := copy(x.tail, x.tail[x.dropped:])
		clear(x.tail[n:])
		x.tail, x.dropped = x.tail[:n], 0
	}
}

func weight(e *raftpb.Entry) int64 { return int64(len(e.GetData())) + entryInsides }

// inMemory returns the entries of the tail from lo on, none if lo is older.
func (x *index) inMemory(lo uint64) []*raftpb.Entry {
	tail := x.tail[x.dropped:]
	if len(tail) == 0 || lo < tail[0].GetIndex() {
		return nil
	}
	return tail[lo-tail[0].GetIndex():]
}

// oldest returns the index of the first entry in memory, last+1 if there is none.
func (x *index) oldest() uint64 { return x.last + 1 - uint64(len(x.tail)-x.dropped) }

// place returns where to start looking for entry i: at the last frame known to begin at
// or before it. Replaced entries may lie on the way; their terms tell.
func (x *index) place(i uint64) (point, bool) {
	n := sort.Search(len(x.points), func(k int) bool { return x.points[k].index > i })
	if n == 0 {
		return point{}, false
	}
	return x.points[n-1], true
}

// compact forgets entries up to base, which lie in segments that go.
func (x *index) compact(base uint64, gone []*segment) {
	x.points = slices.DeleteFunc(x.points, func(p point) bool { return slices.Contains(gone, p.seg) })
	term, err := x.term(base)
	if err != nil || base == x.base {
		return
	}
	n := sort.Search(len(x.runs), func(k int) bool { return x.runs[k].first > base })
	x.runs = slices.Clone(x.runs[n-1:]) // a copy, or the old ones would stay in memory; base > x.base: it is in one of them
	x.runs[0].first = base + 1
	if base == x.last || len(x.runs) > 1 && x.runs[1].first == base+1 {
		x.runs = x.runs[1:]
	}
	for x.dropped < len(x.tail) && x.tail[x.dropped].GetIndex() <= base {
		x.dropOldest()
	}
	x.base, x.baseTerm = base, term
}
