package wal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/vfs"
)

var voters = &raftpb.ConfState{Voters: []uint64{7, 8, 9}}

func options(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: "data/raft", Cluster: [32]byte{1, 2, 3}, RaftID: 7, SegmentBytes: 8 << 10, TailBytes: 4 << 10}
}

func created(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Create(o, voters)
	require.NoError(t, err)
	return l
}

func opened(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	require.NoError(t, err)
	return l
}

func entry(index, term uint64, data string) *raftpb.Entry {
	return &raftpb.Entry{Index: &index, Term: &term, Data: []byte(data)}
}

func hard(term, vote, commit uint64) *raftpb.HardState {
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
}

// entries makes those from first to last, each of so many bytes that tell it apart.
func entries(first, last, term uint64, size int) (ents []*raftpb.Entry) {
	for i := first; i <= last; i++ {
		data := fmt.Sprintf("entry %d of term %d ", i, term)
		ents = append(ents, entry(i, term, data+strings.Repeat("x", max(size-len(data), 0))))
	}
	return ents
}

// content is everything that raft could ask a log for.
type content struct {
	hard     string
	snapshot string
	body     string
	base     uint64
	baseTerm uint64
	entries  []string // "index/term/type/data"
}

func contentOf(t testing.TB, l *Log) (c content) {
	t.Helper()
	h, _, err := l.InitialState()
	require.NoError(t, err)
	c.hard = fmt.Sprintf("%d/%d/%d", h.GetTerm(), h.GetVote(), h.GetCommit())
	first, err := l.FirstIndex()
	require.NoError(t, err)
	last, err := l.LastIndex()
	require.NoError(t, err)
	c.base = first - 1
	c.baseTerm, err = l.Term(c.base)
	require.NoError(t, err)
	ents, err := l.Entries(first, last+1, 1<<40)
	require.NoError(t, err)
	require.Len(t, ents, int(last-c.base))
	for i, e := range ents {
		require.Equal(t, first+uint64(i), e.GetIndex())
		term, err := l.Term(e.GetIndex())
		require.NoError(t, err)
		require.Equal(t, e.GetTerm(), term)
		c.entries = append(c.entries, fmt.Sprintf("%d/%d/%d/%s", e.GetIndex(), e.GetTerm(), e.GetType(), e.GetData()))
	}
	meta, r, err := l.OpenSnapshot()
	require.NoError(t, err)
	body, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	c.snapshot, c.body = fmt.Sprintf("%d/%d/%v", meta.GetIndex(), meta.GetTerm(), meta.GetConfState().GetVoters()), string(body)
	return c
}

func TestANewLogBeginsBehindTheSyntheticSnapshot(t *testing.T) {
	o := options(vfs.NewMem())
	_, err := Open(o)
	require.ErrorIs(t, err, ErrNotFound)
	for _, l := range []*Log{created(t, o), nil} {
		if l == nil {
			l = opened(t, o)
		}
		h, conf, err := l.InitialState()
		require.NoError(t, err)
		require.True(t, proto.Equal(hard(1, 0, 1), h), "%v", h)
		require.Equal(t, voters.Voters, conf.Voters)
		snap, err := l.Snapshot()
		require.NoError(t, err)
		require.EqualValues(t, 1, snap.GetMetadata().GetIndex())
		require.EqualValues(t, 1, snap.GetMetadata().GetTerm())
		require.Empty(t, contentOf(t, l).body)
		require.NoError(t, l.Close())
	}
	_, err = Create(o, voters)
	require.ErrorIs(t, err, fs.ErrExist)
}

var quiet = &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)}

func TestRaftStartsFromALog(t *testing.T) {
	o := options(vfs.NewMem())
	conf := &raftpb.ConfState{Voters: []uint64{7}}
	l, err := Create(o, conf)
	require.NoError(t, err)
	for range 3 {
		node, err := raft.NewRawNode(&raft.Config{ID: 7, ElectionTick: 10, HeartbeatTick: 1, Storage: l, Applied: 1, Logger: quiet, MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 16})
		require.NoError(t, err)
		require.NoError(t, node.Campaign())
		for range 3 {
			for node.HasReady() {
				rd := node.Ready()
				require.NoError(t, l.Append(rd.HardState, rd.Entries, rd.MustSync))
				node.Advance(rd)
			}
			require.NoError(t, node.Propose([]byte("hello")))
		}
		before := contentOf(t, l)
		require.NoError(t, l.Close())
		l = opened(t, o)
		require.Equal(t, before, contentOf(t, l))
	}
}

func TestWhatWasAppendedIsThereAfterReopening(t *testing.T) {
	o := options(vfs.NewMem())
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 4, 2, 100), true))
	require.NoError(t, l.Append(hard(2, 8, 4), entries(5, 60, 2, 700), true))
	require.NoError(t, l.Append(nil, entries(61, 61, 3, 20_000), true))
	change, data, err := raftpb.MarshalConfChange(&raftpb.ConfChangeV2{Changes: []*raftpb.ConfChangeSingle{{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(11))}}})
	require.NoError(t, err)
	e := &raftpb.Entry{Index: new(uint64(62)), Term: new(uint64(3)), Type: &change, Data: data}
	require.NoError(t, l.Append(nil, []*raftpb.Entry{e, {Index: new(uint64(63)), Term: new(uint64(3))}}, true))
	before := contentOf(t, l)
	require.Len(t, before.entries, 62)
	require.Equal(t, "2/8/4", before.hard)
	require.NoError(t, l.Close())
	l = opened(t, o)
	require.Equal(t, before, contentOf(t, l))
	ents, err := l.Entries(62, 64, 1<<20)
	require.NoError(t, err)
	require.True(t, proto.Equal(e, ents[0]), "a change of the configuration comes back as it was")
	require.Nil(t, ents[1].Data)
}

func TestAConflictingSuffixIsReplaced(t *testing.T) {
	for _, tail := range []int64{1, 4 << 10, 4 << 20} {
		o := options(vfs.NewMem())
		o.TailBytes = tail
		l := created(t, o)
		require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 60, 2, 300), true))
		require.NoError(t, l.Append(hard(3, 9, 1), entries(40, 41, 3, 300), true))
		require.NoError(t, l.Append(nil, entries(42, 70, 3, 300), true))
		require.NoError(t, l.Append(hard(4, 9, 1), entries(55, 55, 4, 300), true))
		require.NoError(t, l.Append(hard(5, 9, 1), entries(30, 90, 5, 300), true))
		require.NoError(t, l.Append(hard(6, 9, 1), entries(90, 91, 6, 300), true))
		before := contentOf(t, l)
		var want []string
		for _, e := range slices.Concat(entries(2, 29, 2, 300), entries(30, 89, 5, 300), entries(90, 91, 6, 300)) {
			want = append(want, fmt.Sprintf("%d/%d/0/%s", e.GetIndex(), e.GetTerm(), e.GetData()))
		}
		require.Equal(t, want, before.entries)
		require.NoError(t, l.Close())
		require.Equal(t, before, contentOf(t, opened(t, o)))
	}
}

func TestAHardStateAloneMayWaitAndAVoteMayNot(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	count := mem.Count()
	require.NoError(t, l.Append(hard(2, 8, 7), nil, false))
	require.Equal(t, count, mem.Count(), "a commit index costs no write")
	require.Equal(t, "2/8/7", contentOf(t, l).hard)
	mem.Crash()
	l = opened(t, o)
	require.Equal(t, "2/8/1", contentOf(t, l).hard)
	require.NoError(t, l.Append(hard(2, 8, 7), nil, false))
	require.NoError(t, l.Append(nil, entries(10, 10, 2, 10), true))
	mem.Crash()
	l = opened(t, o)
	require.Equal(t, "2/8/7", contentOf(t, l).hard, "it went with the next frame")
	require.NoError(t, l.Append(hard(3, 9, 7), nil, true))
	mem.Crash()
	l = opened(t, o)
	require.Equal(t, "3/9/7", contentOf(t, l).hard)
	require.NoError(t, l.Append(hard(3, 9, 8), nil, false))
	require.NoError(t, l.Close())
	require.Equal(t, "3/9/8", contentOf(t, opened(t, o)).hard, "Close writes what waits")
}

func TestWhatRaftNeverDoesIsRefusedAndHarmless(t *testing.T) {
	l := created(t, options(vfs.NewMem()))
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	before := contentOf(t, l)
	require.ErrorIs(t, l.Append(nil, entries(11, 11, 2, 10), true), ErrInvalid)
	require.ErrorIs(t, l.Append(nil, entries(1, 1, 2, 10), true), ErrInvalid)
	require.ErrorIs(t, l.Append(nil, append(entries(10, 10, 2, 10), entries(12, 12, 2, 10)...), true), ErrInvalid)
	require.ErrorIs(t, l.Append(hard(2, 8, 10), nil, true), ErrInvalid)
	require.NoError(t, l.Append(nil, nil, true))
	require.Equal(t, before, contentOf(t, l))
	require.NoError(t, l.Append(nil, entries(10, 10, 2, 10), true))
}

func TestTheStorageAnswersAsRaftExpects(t *testing.T) {
	for _, tail := range []int64{1, 4 << 20} { // from disk and from memory
		o := options(vfs.NewMem())
		o.TailBytes = tail
		l := created(t, o)
		mem := raft.NewMemoryStorage()
		require.NoError(t, mem.ApplySnapshot(&raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(uint64(1)), Term: new(uint64(1)), ConfState: voters}}))
		ents := entries(2, 50, 2, 90)
		for i := 0; i < len(ents); i += 7 {
			require.NoError(t, l.Append(nil, ents[i:i+7], true))
		}
		require.NoError(t, mem.Append(ents))
		for lo := uint64(0); lo <= 51; lo++ {
			want, wantErr := mem.Term(lo)
			got, err := l.Term(lo)
			require.Equal(t, wantErr, err, "term %d", lo)
			require.Equal(t, want, got)
			for hi := lo; hi <= 51; hi += 5 {
				for _, size := range []uint64{0, 1, 103, 104, 208, 1 << 40} {
					want, wantErr := mem.Entries(lo, hi, size)
					got, err := l.Entries(lo, hi, size)
					require.Equal(t, wantErr, err, "entries %d to %d", lo, hi)
					require.Len(t, got, len(want), "entries %d to %d in %d bytes", lo, hi, size)
					for i := range want {
						require.True(t, proto.Equal(want[i], got[i]), "%v %v", want[i], got[i])
					}
				}
			}
		}
		_, err := l.Entries(50, 52, 1)
		require.ErrorIs(t, err, raft.ErrUnavailable)
	}
}

func TestASnapshotIsReadAsItWasWritten(t *testing.T) {
	for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3*chunkBytes + 17} {
		o := options(vfs.NewMem())
		l := created(t, o)
		require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
		body := bytes.Repeat([]byte("snapshot body. "), size/15+1)[:size]
		conf := &raftpb.ConfState{Voters: []uint64{7, 8}, Learners: []uint64{12}}
		require.NoError(t, l.SaveSnapshot(8, conf, func(w io.Writer) error {
			for b := range slices.Chunk(body, 100_000) {
				if _, err := w.Write(b); err != nil {
					return err
				}
			}
			return nil
		}))
		before := contentOf(t, l)
		require.Equal(t, "8/2/[7 8]", before.snapshot)
		require.Equal(t, "2/8/8", before.hard, "what is in a snapshot was committed")
		require.True(t, before.body == string(body))
		require.NoError(t, l.Close())
		l = opened(t, o)
		require.Equal(t, before, contentOf(t, l))
		_, got, err := l.InitialState()
		require.NoError(t, err)
		require.NoError(t, conf.Equivalent(got))
		names, err := o.FS.List(o.Dir)
		require.NoError(t, err)
		require.Equal(t, []string{segmentName(1), snapshotName(8)}, names, "the one before is gone")
	}
}

func nothing(io.Writer) error { return nil }

func TestASnapshotMustBeNewAndOfTheLog(t *testing.T) {
	o := options(vfs.NewMem())
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	require.ErrorIs(t, l.SaveSnapshot(1, voters, nothing), raft.ErrSnapOutOfDate)
	require.ErrorIs(t, l.SaveSnapshot(10, voters, nothing), raft.ErrUnavailable)
	before := contentOf(t, l)
	broken := errors.New("the machine cannot be encoded")
	require.ErrorIs(t, l.SaveSnapshot(5, voters, func(w io.Writer) error {
		_, _ = w.Write(make([]byte, 3*chunkBytes))
		return broken
	}), broken)
	require.Equal(t, before, contentOf(t, l))
	require.NoError(t, l.SaveSnapshot(5, voters, nothing), "a failed one is no poison")
	names, err := o.FS.List(o.Dir)
	require.NoError(t, err)
	require.Len(t, names, 2)
}

// The snapshotter runs beside the appends: a HardState from before the snapshot may be
// written after its marker, and raft does not start behind its own snapshot.
func TestCommitIsNeverBehindTheSnapshot(t *testing.T) {
	o := options(vfs.NewMem())
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	require.NoError(t, l.SaveSnapshot(8, voters, nothing))
	require.NoError(t, l.Append(hard(2, 8, 5), entries(10, 10, 2, 10), true))
	require.NoError(t, l.Close())
	require.Equal(t, "2/8/8", contentOf(t, opened(t, o)).hard)
}

func TestAReplacedSnapshotCanBeReadToItsEnd(t *testing.T) {
	l := created(t, options(vfs.NewMem()))
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	body := strings.Repeat("x", 2*chunkBytes)
	write := func(w io.Writer) error {
		_, err := io.WriteString(w, body)
		return err
	}
	require.NoError(t, l.SaveSnapshot(5, voters, write))
	_, r, err := l.OpenSnapshot()
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, l.SaveSnapshot(6, voters, nothing))
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	require.True(t, string(b) == body)
}

func TestCompactionLetsWholeSegmentsGo(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), nil, true))
	for i := uint64(2); i <= 200; i++ {
		require.NoError(t, l.Append(nil, entries(i, i, 2, 200), true))
	}
	segs := len(l.segs)
	require.NoError(t, l.Compact(150))
	require.Len(t, l.segs, segs, "there is no snapshot of it")
	require.NoError(t, l.SaveSnapshot(100, voters, nothing))
	before := l.Bytes()
	require.NoError(t, l.Compact(150))
	require.Less(t, l.Bytes(), before)
	first, err := l.FirstIndex()
	require.NoError(t, err)
	require.Greater(t, first, uint64(50))
	require.LessOrEqual(t, first, uint64(101))
	_, err = l.Entries(first-1, first+1, 1)
	require.ErrorIs(t, err, raft.ErrCompacted)
	_, err = l.Term(first - 2)
	require.ErrorIs(t, err, raft.ErrCompacted)
	for _, i := range []uint64{first - 1, 100} {
		term, err := l.Term(i)
		require.NoError(t, err)
		require.EqualValues(t, 2, term)
	}
	require.Len(t, l.spares, maxSpares)
	count := contentOf(t, l)
	require.NoError(t, l.Close())
	l = opened(t, o)
	require.Equal(t, count, contentOf(t, l))
	require.Equal(t, "2/8/100", count.hard, "the vote outlives its segment")
}

func TestRecycledSegmentsServeAgain(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	l := created(t, o)
	next := uint64(2)
	for round := range uint64(6) {
		for range 200 {
			require.NoError(t, l.Append(hard(round+2, 0, 1), entries(next, next, round+2, 200), true))
			next++
		}
		require.NoError(t, l.SaveSnapshot(next-1, voters, nothing))
		require.NoError(t, l.Compact(next-1))
		require.LessOrEqual(t, mem.Used(), int64(4*8<<10+1000), "one segment, two spares, a snapshot")
		for _, s := range l.spares {
			b, err := vfs.ReadFile(mem, s.path)
			require.NoError(t, err)
			require.True(t, allZero(b), "recycled means zero")
		}
	}
	before := contentOf(t, l)
	mem.Crash()
	require.Equal(t, before, contentOf(t, opened(t, o)))
}

func TestCompactionMeetsReplacedEntries(t *testing.T) {
	o := options(vfs.NewMem())
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 60, 2, 300), true))
	// The segment that this begins says 61 comes next, but holds 55 and later.
	require.NoError(t, l.Append(hard(3, 9, 1), entries(55, 80, 3, 300), true))
	require.NoError(t, l.SaveSnapshot(70, voters, nothing))
	require.NoError(t, l.Compact(70))
	first, err := l.FirstIndex()
	require.NoError(t, err)
	require.EqualValues(t, 61, first)
	term, err := l.Term(60)
	require.NoError(t, err)
	require.EqualValues(t, 3, term)
	before := contentOf(t, l)
	require.NoError(t, l.Close())
	require.Equal(t, before, contentOf(t, opened(t, o)))
}

func TestAnotherReplicasFilesAreRefusedByName(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	require.NoError(t, created(t, o).Close())
	other := o
	other.RaftID = 8
	_, err := Open(other)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, segmentName(1))
	other = o
	other.Cluster[31] = 1
	_, err = Open(other)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, segmentName(1))
	other = o
	other.RaftID, other.Dir = 8, "data/other"
	require.NoError(t, created(t, other).Close())
	b, err := vfs.ReadFile(mem, filepath.Join(other.Dir, snapshotName(1)))
	require.NoError(t, err)
	require.NoError(t, vfs.WriteFile(mem, filepath.Join(o.Dir, snapshotName(1)), b))
	_, err = Open(o)
	require.ErrorIs(t, err, ErrForeign)
	require.ErrorContains(t, err, snapshotName(1))
}

func TestMissingFilesAreNoticed(t *testing.T) {
	for _, gone := range []string{segmentName(1), segmentName(2), snapshotName(1)} {
		mem := vfs.NewMem()
		o := options(mem)
		l := created(t, o)
		require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 20, 2, 400), true))
		require.NoError(t, l.Append(nil, entries(21, 40, 2, 400), true))
		require.NoError(t, l.Append(nil, entries(41, 60, 2, 400), true))
		require.NoError(t, l.Close())
		require.NoError(t, mem.Remove(filepath.Join(o.Dir, gone)))
		_, err := Open(o)
		var corrupt *CorruptError
		require.ErrorAs(t, err, &corrupt, gone)
	}
}

func TestAClosedLogSaysSo(t *testing.T) {
	l := created(t, options(vfs.NewMem()))
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.Append(nil, entries(2, 2, 1, 1), true), ErrClosed)
	require.ErrorIs(t, l.SaveSnapshot(2, voters, nothing), ErrClosed)
	require.ErrorIs(t, l.Compact(2), ErrClosed)
	_, _, err := l.OpenSnapshot()
	require.ErrorIs(t, err, ErrClosed)
	_, err = l.Entries(2, 2, 1)
	require.ErrorIs(t, err, ErrClosed)
}
