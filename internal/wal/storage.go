package wal

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

var _ raft.Storage = (*Log)(nil)

// InitialState returns the newest HardState and the configuration of the newest
// snapshot. Changes of it that came later are entries.
func (l *Log) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	l.mu.Lock()
	hard, conf := l.hard, l.mark.conf
	l.mu.Unlock()
	c, err := parseConf(conf)
	return &raftpb.HardState{Term: &hard.term, Vote: &hard.vote, Commit: &hard.commit}, c, err
}

func parseConf(b []byte) (*raftpb.ConfState, error) {
	c := new(raftpb.ConfState)
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("decode the configuration: %w", err)
	}
	return raftpb.EnsureConfState(c), nil
}

// FirstIndex returns the index of the first entry that the log has, last+1 if none.
func (l *Log) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.base + 1, nil
}

// LastIndex returns the index of the last entry that is durable.
func (l *Log) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.last, nil
}

// Term returns the term of entry i, from the one before the first to the last; else
// raft.ErrCompacted or raft.ErrUnavailable. It never reads from disk.
func (l *Log) Term(i uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index.term(i)
}

// Snapshot returns the metadata of the newest snapshot. Its body is a file of its own
// and never in memory: see [Log.OpenSnapshot].
func (l *Log) Snapshot() (*raftpb.Snapshot, error) {
	l.mu.Lock()
	mark := l.mark
	l.mu.Unlock()
	meta, err := mark.metadata()
	if err != nil {
		return nil, err
	}
	return &raftpb.Snapshot{Metadata: meta}, nil
}

func (m *marker) metadata() (*raftpb.SnapshotMetadata, error) {
	conf, err := parseConf(m.conf)
	if err != nil {
		return nil, err
	}
	return &raftpb.SnapshotMetadata{ConfState: conf, Index: new(m.index), Term: new(m.term)}, nil
}

// Entries returns the entries of [lo, hi), as many as fit in maxBytes but at least one.
// Those that are no longer in memory are read from disk and verified again, which may
// be a [CorruptError].
func (l *Log) Entries(lo, hi, maxBytes uint64) ([]*raftpb.Entry, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, ErrClosed
	}
	if lo <= l.index.base {
		l.mu.Unlock()
		return nil, raft.ErrCompacted
	}
	if hi > l.index.last+1 || lo > hi {
		l.mu.Unlock()
		return nil, raft.ErrUnavailable
	}
	oldest := l.index.oldest()
	// Usually all of it is in memory. A follower that lags reads from disk what is older
	// and goes on in memory, so that maxBytes means the same in both.
	tail := l.index.inMemory(max(lo, oldest))
	batch := batch{max: maxBytes}
	if lo >= oldest {
		defer l.mu.Unlock()
		batch.fill(tail[:hi-lo])
		return batch.ents, nil
	}
	if hi > oldest {
		tail = slices.Clone(tail[:hi-oldest]) // appends move what the tail lies in
	} else {
		tail = nil
	}
	l.mu.Unlock()
	if err := l.readBack(&batch, lo, min(hi, oldest)); err != nil {
		return nil, err
	}
	batch.fill(tail)
	return batch.ents, nil
}

// batch collects entries up to a size, at least one.
type batch struct {
	ents       []*raftpb.Entry
	bytes, max uint64
	full       bool
}

func (b *batch) add(e *raftpb.Entry) {
	b.bytes += entryBytes(e)
	b.full = b.full || len(b.ents) > 0 && b.bytes > b.max
	if !b.full {
		b.ents = append(b.ents, e)
	}
}

func (b *batch) fill(ents []*raftpb.Entry) {
	b.ents = slices.Grow(b.ents, len(ents))
	for _, e := range ents {
		if b.add(e); b.full {
			return
		}
	}
}

// entryBytes is proto.Size of an entry, without its reflection.
func entryBytes(e *raftpb.Entry) (n uint64) {
	varint := func(v uint64) uint64 { return uint64(bits.Len64(v|1)+6) / 7 }
	if e.Type != nil {
		n += 1 + varint(uint64(e.GetType()))
	}
	if e.Term != nil {
		n += 1 + varint(e.GetTerm())
	}
	if e.Index != nil {
		n += 1 + varint(e.GetIndex())
	}
	if e.Data != nil {
		n += 1 + varint(uint64(len(e.Data))) + uint64(len(e.Data))
	}
	return n
}

// readBack adds the entries of [lo, hi) from disk. Frames that hold replaced entries
// are passed over by their terms.
func (l *Log) readBack(out *batch, lo, hi uint64) error {
	l.files.RLock()
	defer l.files.RUnlock()
	c, runs, err := l.cursorAt(lo)
	if err != nil {
		return err
	}
	s := new(stored)
	for next := lo; next < hi && !out.full; {
		payload, err := c.next()
		if err != nil {
			return err
		}
		r, ok := parseRecord(payload)
		for ok && next < hi && !out.full {
			if !r.entries.next(s) {
				break
			}
			if s.index == next && s.term == termOf(runs, next) {
				out.add(s.message())
				s = new(stored)
				next++
			}
		}
		if !ok || r.entries.in.bad {
			return c.damaged("a frame holds a broken record")
		}
	}
	return nil
}

// cursorAt returns a cursor at or before entry i, and the terms that tell which entries
// on its way are current. The caller holds files.
func (l *Log) cursorAt(i uint64) (*cursor, []run, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, ErrClosed
	}
	if i <= l.index.base {
		return nil, nil, raft.ErrCompacted // between the caller's look and now
	}
	p, ok := l.index.place(i)
	n := slices.Index(l.segs, p.seg)
	if !ok || n < 0 || i > l.index.last {
		return nil, nil, raft.ErrUnavailable
	}
	c := &cursor{off: p.off, chain: p.chain}
	for _, s := range l.segs[n:] {
		c.segs = append(c.segs, stretch{s, s.end})
	}
	return c, slices.Clone(l.index.runs), nil
}

// cursor reads frames one after the other, and verifies them again: the disk may have
// changed its mind since the log was opened.
type cursor struct {
	segs  []stretch // the current one first
	off   int64
	chain uint32
	ahead []byte // what was read from off on
}

// stretch is a segment up to where it was written when the cursor was made.
type stretch struct {
	*segment
	end int64
}

const readAhead = 128 << 10

// next returns the payload of the next frame, valid for good.
func (c *cursor) next() ([]byte, error) {
	for len(c.segs) > 0 && c.off >= c.segs[0].end {
		c.segs, c.off, c.ahead = c.segs[1:], segmentHead, nil
	}
	if len(c.segs) == 0 {
		return nil, raft.ErrUnavailable // replaced while we read
	}
	s := c.segs[0]
	if err := c.want(frameHead); err != nil {
		return nil, err
	}
	f, ok := parseHead(c.ahead, s.salt)
	if !ok || c.off+int64(f.bytes()) > s.end {
		return nil, c.damaged("the head of a frame fails its checksum")
	}
	if err := c.want(f.bytes()); err != nil {
		return nil, err
	}
	payload, ok := f.open(c.ahead, c.chain, s.salt)
	if !ok {
		return nil, c.damaged("a frame fails its checksum")
	}
	c.chain = f.sum
	c.off += int64(f.bytes())
	c.ahead = c.ahead[f.bytes():]
	return payload, nil
}

// want has at least so many bytes from off on in memory. Each read is into memory of
// its own, since entries stay behind in it.
func (c *cursor) want(n int) error {
	if len(c.ahead) >= n {
		return nil
	}
	s := c.segs[0]
	b := make([]byte, min(max(int64(n), readAhead), s.end-c.off))
	if _, err := s.file.ReadAt(b, c.off); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s at %d: %w", s.path, c.off, err)
	}
	c.ahead = b
	return nil
}

func (c *cursor) damaged(reason string) error {
	return &CorruptError{File: c.segs[0].path, Offset: c.off, Reason: reason}
}
