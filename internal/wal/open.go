package wal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// Every first voter starts from the same synthetic snapshot, so that no log begins with
// entries that only one of them wrote.
const firstIndex, firstTerm = 1, 1

// Create makes a log that begins behind a snapshot with an empty body, of index 1 and
// term 1, whose voters are those of conf. It is an fs.ErrExist error if there is a log.
// What an interrupted Create left behind is replaced.
func Create(opts Options, conf *raftpb.ConfState) (*Log, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	l := &Log{opts: opts}
	if err := opts.FS.MkdirAll(opts.Dir); err != nil {
		return nil, l.uncreated(err)
	}
	names, err := opts.FS.List(opts.Dir)
	if err != nil {
		return nil, l.uncreated(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, segmentSuffix) {
			return nil, l.uncreated(fs.ErrExist)
		}
	}
	l.mark = marker{index: firstIndex, term: firstTerm}
	if l.mark.conf, err = proto.Marshal(conf); err != nil {
		return nil, l.uncreated(err)
	}
	if err := l.writeSnapshot(&l.mark, func(io.Writer) error { return nil }); err != nil {
		return nil, l.uncreated(err)
	}
	l.hard = hardState{term: firstTerm, commit: firstIndex}
	l.index = index{base: firstIndex, baseTerm: firstTerm, last: firstIndex}
	s := &segment{seq: 1, first: firstIndex + 1, term: firstTerm, size: opts.SegmentBytes}
	if l.chain, err = l.makeSegment(s, 0); err != nil {
		return nil, l.uncreated(err)
	}
	l.segs = []*segment{s}
	return l, nil
}

func (l *Log) uncreated(err error) error {
	return fmt.Errorf("create a log in %s: %w", l.opts.Dir, err)
}

// Open reads and verifies the whole log and its snapshot. A torn last frame, which was
// never acknowledged, is removed. It returns [ErrNotFound], [CorruptError] or
// [ErrForeign], each with the path, and has then changed nothing on disk.
func Open(opts Options) (*Log, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	l := &Log{opts: opts}
	if err := l.load(); err != nil {
		for _, s := range l.segs {
			_ = s.file.Close() // nothing was written
		}
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return l, nil
}

// load verifies everything before it changes anything: whoever has a damaged log must
// still find all of it, to restore what can be restored.
func (l *Log) load() error {
	names, err := l.opts.FS.List(l.opts.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var logs []string // List sorts, and the numbers have one width
	for _, name := range names {
		if _, ok := numbered(name, segmentSuffix); ok {
			logs = append(logs, name)
		}
	}
	if len(logs) == 0 {
		return fmt.Errorf("%s: %w", l.opts.Dir, ErrNotFound)
	}
	var end lastFrame
	for i, name := range logs {
		if end, err = l.replay(name, i == len(logs)-1); err != nil {
			return err
		}
	}
	if err := l.connect(); err != nil {
		return err
	}
	if err := l.verifySnapshot(); err != nil {
		return err
	}
	if err := l.settle(&end); err != nil {
		return err
	}
	return l.tidy(names)
}

// lastFrame is what the last segment ends with.
type lastFrame struct {
	seg  *segment
	off  int64
	torn int64 // what follows up to there is a torn frame; 0 for none
}

// replay verifies a segment and takes its records in.
func (l *Log) replay(name string, last bool) (end lastFrame, err error) {
	path := l.opts.path(name)
	s, b, err := l.readSegment(name)
	if err != nil {
		return end, err
	}
	l.segs = append(l.segs, s)
	s.end = segmentHead
	end = lastFrame{seg: s, off: segmentHead}
	damaged := func(reason string) error { return &CorruptError{File: path, Offset: s.end, Reason: reason} }
	for !allZero(b[s.end:]) {
		f, ok := parseHead(b[s.end:], s.salt)
		var payload []byte
		if ok {
			payload, ok = f.open(b[s.end:], l.chain, s.salt)
		}
		if !ok {
			torn, reason := tear(b, int(s.end), s.salt)
			// A segment is made durable with its first frame before it has a name, and
			// is whole before the next one begins: neither can be torn.
			if !last || s.end == segmentHead {
				reason = "a frame fails its checksum, and it was synced"
			}
			if reason != "" {
				return end, damaged(reason)
			}
			end.torn = int64(torn)
			return end, nil
		}
		place := point{seg: s, off: s.end, chain: l.chain}
		if reason := l.take(payload, place); reason != "" {
			return end, damaged(reason)
		}
		l.chain, end.off = f.sum, s.end
		s.end += int64(f.bytes())
	}
	if s.end == segmentHead {
		return end, damaged("the first frame of the segment is gone")
	}
	return end, nil
}

// readSegment reads a whole file and checks that it is the next of the log.
func (l *Log) readSegment(name string) (*segment, []byte, error) {
	path := l.opts.path(name)
	file, err := l.opts.FS.Open(path)
	if err != nil {
		return nil, nil, err
	}
	size, err := file.Size()
	var b []byte
	if err == nil {
		b = make([]byte, size)
		_, err = file.ReadAt(b, 0)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, errors.Join(err, file.Close())
	}
	s, err := parseSegmentHead(b, path, &l.opts)
	if err == nil {
		err = l.follows(s, name, size)
	}
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	s.file = file
	if len(l.segs) == 0 { // older ones were compacted, so its head is where the chain begins
		l.chain = s.chain
		l.index = index{base: s.first - 1, baseTerm: s.term, last: s.first - 1}
	}
	return s, b, nil
}

// follows checks what the head of s says against what was read so far.
func (l *Log) follows(s *segment, name string, size int64) error {
	damaged := func(format string, args ...any) error {
		return &CorruptError{File: s.path, Reason: fmt.Sprintf(format, args...)}
	}
	if s.size != size {
		// Segments are reserved whole, so a shorter one was cut, perhaps right behind a
		// frame, where nothing else would show it.
		return damaged("the file has %d bytes, it was made with %d", size, s.size)
	}
	if name != segmentName(s.seq) || s.first == 0 {
		return damaged("the file was made as %s", segmentName(s.seq))
	}
	if len(l.segs) == 0 {
		return nil
	}
	prev := l.segs[len(l.segs)-1]
	if s.seq != prev.seq+1 {
		return damaged("it follows %s: the files between are missing", segmentName(prev.seq))
	}
	if s.chain != l.chain || s.first != l.index.last+1 {
		return damaged("it does not go on where %s ends", segmentName(prev.seq))
	}
	return nil
}

// take applies one verified payload. The reason is not empty if it cannot be.
func (l *Log) take(payload []byte, place point) (reason string) {
	r, ok := parseRecord(payload)
	if !ok {
		return "a frame holds no record"
	}
	if r.has&hasHardState != 0 {
		l.hard = r.hard
	}
	if r.has&hasMarker != 0 {
		l.mark = marker{r.mark.index, r.mark.term, append([]byte(nil), r.mark.conf...)}
	}
	if r.has&hasEntries != 0 {
		place.index = r.entries.index
		if place.index == 0 || place.index > l.index.last+1 {
			return fmt.Sprintf("entry %d follows entry %d", place.index, l.index.last)
		}
		l.index.begin(place)
	}
	for {
		s := new(stored)
		if !r.entries.next(s) {
			break
		}
		s.data = append([]byte(nil), s.data...) // the segment's bytes must not stay in memory
		l.index.add(s.index, s.term)
		if s.index > l.index.base {
			l.index.keep(s.message(), l.opts.TailBytes)
		}
	}
	if !r.entries.clean() {
		return "a frame holds a broken record"
	}
	return ""
}

// connect checks what no frame shows alone: that log, HardState and snapshot belong
// together.
func (l *Log) connect() error {
	first, last := l.segs[0], l.segs[len(l.segs)-1]
	x := &l.index
	if l.mark.index < x.base {
		return &CorruptError{File: first.path, Reason: fmt.Sprintf("the log begins at entry %d, the snapshot ends at %d: files between are missing", x.base+1, l.mark.index)}
	}
	end := func(format string, args ...any) error {
		return &CorruptError{File: last.path, Offset: last.end, Reason: fmt.Sprintf(format, args...)}
	}
	if term, err := x.term(l.mark.index); x.last < l.mark.index || err != nil || term != l.mark.term {
		return end("the log ends at entry %d, its snapshot is of entry %d in term %d", x.last, l.mark.index, l.mark.term)
	}
	if l.hard.commit > x.last {
		return end("the log ends at entry %d, %d are committed", x.last, l.hard.commit)
	}
	// A commit index that came alone may have been lost, but a snapshot holds only what
	// was committed, and raft refuses to start behind its own snapshot.
	l.hard.commit = max(l.hard.commit, l.mark.index)
	return nil
}

// settle makes durable what was read. The process before may have died between the
// write of the last frame and its sync, or its sync may have failed, which leaves pages
// that count as clean: so the frame is written again before anybody relies on it.
func (l *Log) settle(end *lastFrame) error {
	s := end.seg
	if end.torn > s.end {
		l.opts.Logger.Warn("wal: removed a torn frame that was never acknowledged", "file", s.path, "offset", s.end, "bytes", end.torn-s.end)
		if err := blank(s.file, s.end, end.torn); err != nil {
			return fmt.Errorf("remove the torn frame at the end of %s: %w", s.path, err)
		}
	}
	b := make([]byte, s.end-end.off)
	_, err := s.file.ReadAt(b, end.off)
	if err == nil || errors.Is(err, io.EOF) {
		_, err = s.file.WriteAt(b, end.off)
	}
	if err != nil {
		return fmt.Errorf("write the last frame of %s again: %w", s.path, err)
	}
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", s.path, err)
	}
	return l.opts.FS.SyncDir(l.opts.Dir)
}

// tidy removes what a crash left behind: files that nothing refers to.
func (l *Log) tidy(names []string) error {
	for _, name := range names {
		n, isSnapshot := numbered(name, snapshotSuffix)
		stale := isSnapshot && n != l.mark.index
		if !stale && !strings.HasSuffix(name, tmpSuffix) && !strings.HasSuffix(name, spareSuffix) {
			continue
		}
		if err := l.opts.FS.Remove(l.opts.path(name)); err != nil {
			return err
		}
	}
	return nil
}
