package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Options say where a log lies and whose it is.
type Options struct {
	FS      vfs.FS // default the operating system's
	Dir     string // of its own; made if it is missing
	Cluster [32]byte
	RaftID  uint64 // not 0
	// SegmentBytes is the size of a segment, default 8 MiB. Larger ones are made less
	// often, smaller ones let compaction free space sooner. A frame that is larger gets
	// a segment of its own.
	SegmentBytes int64
	// TailBytes of the newest entries stay in memory, default 4 MiB; older ones are
	// read from disk.
	TailBytes int64
	Logger    *slog.Logger // default none; a torn last frame is worth one line
}

const (
	defaultSegmentBytes = 8 << 20
	defaultTailBytes    = 4 << 20
	minSegmentBytes     = 1 << 10
	keepBuffer          = 1 << 20 // a rare large frame must not hold its memory for ever
)

func (o *Options) complete() error {
	if o.Dir == "" || o.RaftID == 0 {
		return fmt.Errorf("open a log in %q for raft id %d: both must be given", o.Dir, o.RaftID)
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = defaultSegmentBytes
	}
	if o.TailBytes == 0 {
		o.TailBytes = defaultTailBytes
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.SegmentBytes = max(o.SegmentBytes, minSegmentBytes)
	return nil
}

func (o *Options) path(name string) string { return filepath.Join(o.Dir, name) }

// Log is the raft log of one replica. It is a raft.Storage.
type Log struct {
	opts Options

	// Four locks, always taken in this order, so that no reader waits for a write to
	// disk and no append waits for a snapshot that is being written.

	upkeep sync.Mutex // held by SaveSnapshot and Compact: one at a time

	write   sync.Mutex // guards what follows; held while a frame is written and synced
	buf     []byte
	chain   uint32 // behind the last frame
	lagging bool   // hard is newer than what is on disk

	// Read-held while entries or a snapshot are looked for on disk. Whoever takes a file
	// away holds it first: a reader must never meet the zeros of a recycled segment,
	// which would look like damage.
	files sync.RWMutex

	// Guards what follows, never held during I/O. Writers hold write as well, so whoever
	// holds write may read all of it but spares, broken and closed without mu.
	mu     sync.Mutex
	hard   hardState
	mark   marker
	index  index
	segs   []*segment // ascending, at least one
	spares []spare
	broken error // poison
	closed bool
}

// spare is a retired segment, all zero, for the next one that is needed.
type spare struct {
	path string
	file vfs.File
}

// Append makes hs and ents durable in one frame: when it returns nil they survive the
// loss of power. Entries follow one another; the first may replace what the log has
// from its index on, if that was never committed. Entries must not change any more.
//
// hs may be nil or empty for no change. If it comes without entries and sync is false,
// it waits in memory for the next frame: a commit index may be lost, a vote may not.
//
// After [FullError] nothing was written and the same call can be repeated; [ErrInvalid]
// is a mistake of the caller; all else poisons the log.
func (l *Log) Append(hs *raftpb.HardState, ents []*raftpb.Entry, sync bool) error {
	l.write.Lock()
	defer l.write.Unlock()
	hard, err := l.admit(hs, ents)
	if err != nil {
		return err
	}
	changed := hard != l.hard
	if len(ents) == 0 && !(sync && (changed || l.lagging)) {
		// Not even written: with a frame on its way that is not synced, a second one
		// would make "only the last frame can be torn" false.
		l.mu.Lock()
		defer l.mu.Unlock()
		l.hard, l.lagging = hard, l.lagging || changed
		return nil
	}
	var part *hardState
	if changed || l.lagging {
		part = &hard
	}
	place, err := l.put(part, nil, ents)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Only now that it is durable: raft must not be told of an entry that may go.
	l.hard, l.lagging = hard, false
	if len(ents) > 0 {
		place.index = ents[0].GetIndex()
		l.index.begin(place)
	}
	for _, e := range ents {
		l.index.add(e.GetIndex(), e.GetTerm())
		l.index.keep(e, l.opts.TailBytes)
	}
	return nil
}

// admit refuses what raft never does, before it can do harm, and returns the HardState
// that will hold. Only writers change what it reads.
func (l *Log) admit(hs *raftpb.HardState, ents []*raftpb.Entry) (hardState, error) {
	hard := l.hard
	if err := l.usable(); err != nil {
		return hard, err
	}
	last := l.index.last
	for i, e := range ents {
		at := e.GetIndex()
		if i == 0 && (at <= l.index.base || at > last+1) || i > 0 && at != last+1 {
			return hard, fmt.Errorf("%w: entry %d to a log of %d to %d", ErrInvalid, at, l.index.base+1, last)
		}
		last = at
	}
	if n := (hardState{hs.GetTerm(), hs.GetVote(), hs.GetCommit()}); n != (hardState{}) {
		hard = n
	}
	// Raft panics when it starts from a commit index behind which the log has nothing.
	if hard.commit > last {
		return hard, fmt.Errorf("%w: commit %d of a log that ends at %d", ErrInvalid, hard.commit, last)
	}
	return hard, nil
}

// usable returns why nothing can be written any more, if so.
func (l *Log) usable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	return l.broken
}

// put writes one frame and syncs it. It returns where the frame is. Until it returns
// nil neither the chain nor the end of the segment move, because after a full disk the
// same place and the same chain are used again.
func (l *Log) put(hard *hardState, mark *marker, ents []*raftpb.Entry) (point, error) {
	b := appendRecord(append(l.buf[:0], zeros[:frameHead]...), hard, mark, ents)
	l.buf = b
	if len(b)-frameHead > maxPayload {
		return point{}, fmt.Errorf("%w: %d bytes in one frame, %d are the most", ErrInvalid, len(b)-frameHead, maxPayload)
	}
	s := l.segs[len(l.segs)-1]
	if need := frameBytes(len(b) - frameHead); s.end+int64(need) > s.size {
		var err error
		if s, err = l.roll(need); err != nil {
			return point{}, err
		}
	}
	place := point{seg: s, off: s.end, chain: l.chain}
	b, chain := seal(b, s.end, l.chain, s.salt)
	l.buf = b
	if _, err := s.file.WriteAt(b, s.end); err != nil {
		return point{}, l.poison("write", s.path, err)
	}
	if err := s.file.Sync(); err != nil {
		return point{}, l.poison("sync", s.path, err)
	}
	l.chain = chain
	if cap(l.buf) > keepBuffer {
		l.buf = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.end += int64(len(b))
	return place, nil
}

// poison makes the first error of the disk the answer to everything. Retrying would be
// wrong even if it worked: after a failed fsync the kernel may call pages clean that
// never reached the disk (Rebello et al., "Can Applications Recover from fsync
// Failures?", USENIX ATC 2020).
func (l *Log) poison(what, path string, cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken == nil {
		l.broken = fmt.Errorf("%s %s: %w: %w", what, path, cause, ErrPoisoned)
	}
	return l.broken
}

// roll begins the next segment, with room for a frame of so many bytes. The frames
// before it are all synced, so a segment that has a successor has no torn frame.
func (l *Log) roll(need int) (*segment, error) {
	prev := l.segs[len(l.segs)-1]
	term, err := l.index.term(l.index.last)
	if err != nil {
		return nil, err
	}
	s := &segment{seq: prev.seq + 1, first: l.index.last + 1, term: term, chain: l.chain, size: l.opts.SegmentBytes}
	chain, err := l.makeSegment(s, need)
	if err != nil {
		return nil, err
	}
	l.chain, l.lagging = chain, false
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = append(l.segs, s)
	return s, nil
}

// makeSegment brings s to disk: reserved, with its head and a first frame that carries
// the HardState and the marker, so that older segments can go. It has its name only
// once all of that is durable: a segment with a broken head is always damage. It returns
// the chain behind the first frame.
func (l *Log) makeSegment(s *segment, need int) (uint32, error) {
	first := appendRecord(zeroHead(), &l.hard, &l.mark, nil)
	if least := int64(segmentHead + frameBytes(len(first)-frameHead) + need); s.size < least {
		s.size = (least + vfs.SectorBytes - 1) / vfs.SectorBytes * vfs.SectorBytes
	}
	head := s.appendHead(nil, &l.opts)
	first, chain := seal(first, segmentHead, s.chain, s.salt)
	s.end = int64(segmentHead + len(first))
	s.path = l.opts.path(segmentName(s.seq))
	tmp, err := l.reserve(s)
	if err == nil {
		_, err = s.file.WriteAt(append(head, first...), 0)
	}
	if err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		err = l.opts.FS.Rename(tmp, s.path)
	}
	if err != nil {
		return 0, l.unmade(s, tmp, err)
	}
	if err := l.opts.FS.SyncDir(l.opts.Dir); err != nil {
		return 0, errors.Join(l.poison("sync", l.opts.Dir, err), s.file.Close())
	}
	return chain, nil
}

// zeroHead returns room for the head of a frame, to append a record to.
func zeroHead() []byte { return make([]byte, frameHead, 256) }

// reserve opens a file of the size of s, all zero, and returns its name for now.
func (l *Log) reserve(s *segment) (string, error) {
	if sp, ok := l.takeSpare(s.size); ok {
		s.file = sp.file
		return sp.path, nil
	}
	tmp := l.opts.path(segmentTmp)
	file, err := l.opts.FS.Create(tmp)
	if err != nil {
		return tmp, err
	}
	s.file = file
	return tmp, file.Preallocate(s.size)
}

// takeSpare hands out a recycled segment: it has its blocks already, so beginning the
// next segment neither allocates nor can meet a full disk.
func (l *Log) takeSpare(size int64) (spare, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.spares)
	if n == 0 || size != l.opts.SegmentBytes {
		return spare{}, false
	}
	last := l.spares[n-1]
	l.spares = l.spares[:n-1]
	return last, true
}

// unmade cleans up after a segment that has no name yet. A full disk is no poison:
// nothing of the log was touched.
func (l *Log) unmade(s *segment, tmp string, cause error) error {
	if s.file != nil {
		_ = s.file.Close() // the first error is the one that matters
		_ = l.opts.FS.Remove(tmp)
	}
	if vfs.IsFull(cause) {
		return &FullError{File: s.path, Bytes: s.size, Err: cause}
	}
	return l.poison("begin", s.path, cause)
}

// Bytes returns how much of the disk the log's frames take, without what is reserved
// and without the snapshot.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := int64(0)
	for _, s := range l.segs {
		n += s.end
	}
	return n
}

// Close writes a HardState that still waits, if the log can take it, and closes the
// files. Readers and writers that come later get [ErrClosed].
func (l *Log) Close() error {
	l.upkeep.Lock()
	defer l.upkeep.Unlock()
	l.write.Lock()
	defer l.write.Unlock()
	var err error
	if l.lagging && l.usable() == nil {
		var full *FullError
		if _, err = l.put(&l.hard, nil, nil); errors.As(err, &full) {
			err = nil // it needed not be durable
		}
	}
	l.files.Lock()
	defer l.files.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	for _, s := range l.segs {
		err = errors.Join(err, s.file.Close())
	}
	for _, s := range l.spares {
		err = errors.Join(err, s.file.Close())
	}
	return err
}
