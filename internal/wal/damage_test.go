package wal

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/vfs"
)

// files is a directory as bytes, to be damaged and put onto a fresh disk.
type files map[string][]byte

func filesOf(t *testing.T, o Options) files {
	t.Helper()
	names, err := o.FS.List(o.Dir)
	require.NoError(t, err)
	all := files{}
	for _, name := range names {
		all[name], err = vfs.ReadFile(o.FS, o.path(name))
		require.NoError(t, err)
	}
	return all
}

// on returns options for a fresh disk that holds the files, with name replaced.
func (f files) on(t *testing.T, o Options, name string, b []byte) Options {
	t.Helper()
	mem := vfs.NewMem()
	require.NoError(t, mem.MkdirAll(o.Dir))
	for _, n := range slices.Sorted(maps.Keys(f)) {
		content := f[n]
		if n == name {
			content = b
		}
		file, err := mem.Create(o.path(n))
		require.NoError(t, err)
		_, err = file.WriteAt(content, 0)
		require.NoError(t, err)
		require.NoError(t, file.Sync())
		require.NoError(t, file.Close())
	}
	require.NoError(t, mem.SyncDir(o.Dir))
	o.FS = mem
	return o
}

// smallLog has two segments, a replaced suffix, a snapshot, and last as its last frame.
func smallLog(t *testing.T, last string) (Options, files, content) {
	t.Helper()
	o, all, stages := stagedLog(t, last)
	return o, all, stages[len(stages)-1].content
}

// stage is what a log held when it ended at that byte of its second segment.
type stage struct {
	content
	end int64
}

func stagedLog(t *testing.T, last string) (Options, files, []stage) {
	t.Helper()
	o := options(vfs.NewMem())
	o.SegmentBytes = 3 << 10
	l := created(t, o)
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 4, 2, 60), true))
	require.NoError(t, l.Append(hard(3, 9, 3), entries(4, 5, 3, 60), true))
	require.NoError(t, l.SaveSnapshot(3, voters, func(w io.Writer) error {
		_, err := io.WriteString(w, "the body of the snapshot, which is not long")
		return err
	}))
	require.NoError(t, l.Append(nil, entries(6, 7, 3, 1050), true))
	stages := []stage{{content: contentOf(t, l)}}
	require.NoError(t, l.Append(hard(3, 9, 5), entries(8, 9, 3, 200), true))
	require.Len(t, l.segs, 2)
	stages = append(stages, stage{contentOf(t, l), l.segs[1].end})
	require.NoError(t, l.Append(hard(3, 9, 9), append(entries(10, 10, 3, 0), entry(11, 3, last)), true))
	require.Len(t, l.segs, 2)
	stages = append(stages, stage{contentOf(t, l), l.segs[1].end})
	require.NoError(t, l.Close())
	return o, filesOf(t, o), stages
}

// lastFrames differ in what could be mistaken for a sector that was never written.
var lastFrames = map[string]string{
	"Short":  "x",
	"Long":   strings.Repeat("user data ", 150),
	"Zeros":  strings.Repeat("\x00", 1600),
	"Sparse": strings.Repeat(strings.Repeat("\x00", 300)+"\x01", 5),
}

func TestEachFlippedBitIsReportedOrHarmless(t *testing.T) {
	for kind, last := range lastFrames {
		t.Run(kind, func(t *testing.T) {
			o, all, want := smallLog(t, last)
			refused, harmless := 0, 0
			for name, b := range all {
				for at := range b {
					bit := byte(1) << (at % 8) // every byte, and the bits in turn
					b[at] ^= bit
					l, err := Open(all.on(t, o, name, b))
					b[at] ^= bit
					if err == nil {
						require.Equal(t, want, contentOf(t, l), "%s at %d", name, at)
						harmless++
						continue
					}
					requireDamage(t, err, name)
					refused++
				}
			}
			t.Logf("refused %d, harmless %d (in space that was never used)", refused, harmless)
			require.Greater(t, refused, 1000)
		})
	}
}

func requireDamage(t *testing.T, err error, name string) {
	t.Helper()
	var corrupt *CorruptError
	require.ErrorAs(t, err, &corrupt)
	require.Equal(t, name, filepath.Base(corrupt.File))
	require.ErrorContains(t, err, name)
}

func TestEachBitOfTheLastFrameCounts(t *testing.T) {
	for kind, last := range lastFrames {
		t.Run(kind, func(t *testing.T) {
			o, all, _ := smallLog(t, last)
			name := segmentName(2)
			b := all[name]
			end := len(bytes.TrimRight(b, "\x00"))
			for at := end - 400; at < end; at++ {
				for bit := range 8 {
					b[at] ^= 1 << bit
					_, err := Open(all.on(t, o, name, b))
					b[at] ^= 1 << bit
					requireDamage(t, err, name)
				}
			}
		})
	}
}

func TestATruncatedFileIsReported(t *testing.T) {
	o, all, _ := smallLog(t, "x")
	for name, b := range all {
		for n := range b {
			_, err := Open(all.on(t, o, name, b[:n]))
			requireDamage(t, err, name)
		}
		_, err := Open(all.on(t, o, name, append(slices.Clone(b), 0)))
		requireDamage(t, err, name)
	}
}

// A sector of zeros is the one damage that a torn write looks like. At the end of the
// log it costs the frames that had a part in it; anywhere else it is reported.
func TestAZeroedSectorCostsAtMostTheLastFramesInIt(t *testing.T) {
	for kind, last := range lastFrames {
		t.Run(kind, func(t *testing.T) {
			o, all, stages := stagedLog(t, last)
			for name, b := range all {
				for at := 0; at < len(b); at += vfs.SectorBytes {
					damaged := slices.Clone(b)
					clear(damaged[at:min(at+vfs.SectorBytes, len(b))])
					l, err := Open(all.on(t, o, name, damaged))
					if err != nil {
						var corrupt *CorruptError
						require.ErrorAs(t, err, &corrupt)
						continue
					}
					got := contentOf(t, l)
					n := slices.IndexFunc(stages, func(s stage) bool { return equal(s.content, got) })
					require.GreaterOrEqual(t, n, 0, "%s at %d: no state of this log", name, at)
					if n < len(stages)-1 {
						require.Equal(t, segmentName(2), name)
						require.Less(t, int64(at), stages[n+1].end, "a frame was lost that was whole")
					}
				}
			}
		})
	}
}

func TestAZeroedSectorBeforeTheLastFrameIsReported(t *testing.T) {
	for kind, middle := range lastFrames {
		t.Run(kind, func(t *testing.T) {
			o, l := alignedLog(t)
			from := l.segs[0].end
			require.NoError(t, l.Append(nil, []*raftpb.Entry{entry(3, 1, middle)}, true))
			to := l.segs[0].end
			require.NoError(t, l.Append(nil, entries(4, 4, 1, 1500), true))
			all := filesOf(t, o)
			name := segmentName(1)
			for at := from - vfs.SectorBytes; at < to; at += vfs.SectorBytes {
				if at == from && to < at+vfs.SectorBytes {
					continue // the heads of both frames are in it: they look like one torn frame
				}
				b := slices.Clone(all[name])
				clear(b[at : at+vfs.SectorBytes])
				_, err := Open(all.on(t, o, name, b))
				requireDamage(t, err, name)
			}
		})
	}
}

// alignedLog is one whose next frame begins a sector.
func alignedLog(t *testing.T) (Options, *Log) {
	t.Helper()
	for size := 1; ; size += frameAlign {
		o := options(vfs.NewMem())
		l := created(t, o)
		require.NoError(t, l.Append(nil, entries(2, 2, 1, size), true))
		if l.segs[0].end%vfs.SectorBytes == 0 {
			return o, l
		}
	}
}

func equal(a, b content) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

func TestATornLastFrameIsRemovedWhicheverSectorsSurvived(t *testing.T) {
	for kind, last := range lastFrames {
		t.Run(kind, func(t *testing.T) {
			o := options(vfs.NewMem())
			l := created(t, o)
			require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 4, 2, 60), true))
			before, all := contentOf(t, l), filesOf(t, o)
			require.NoError(t, l.Append(hard(3, 8, 1), []*raftpb.Entry{entry(5, 3, last)}, true))
			after, written := contentOf(t, l), filesOf(t, o)[segmentName(1)]
			old := all[segmentName(1)]
			var differ []int
			for at := 0; at < len(old); at += vfs.SectorBytes {
				if !bytes.Equal(old[at:at+vfs.SectorBytes], written[at:at+vfs.SectorBytes]) {
					differ = append(differ, at)
				}
			}
			for subset := range 1 << len(differ) {
				b, want := slices.Clone(old), before
				for i, at := range differ {
					if subset>>i&1 == 1 {
						copy(b[at:at+vfs.SectorBytes], written[at:])
					}
				}
				if subset == 1<<len(differ)-1 {
					want = after
				}
				o := all.on(t, o, segmentName(1), b)
				for range 2 { // the second time the torn frame is gone
					l, err := Open(o)
					require.NoError(t, err, "subset %b of %d sectors", subset, len(differ))
					require.Equal(t, want, contentOf(t, l))
					o.FS.(*vfs.Mem).Crash()
				}
				l := opened(t, o)
				require.NoError(t, l.Append(nil, entries(uint64(len(want.entries)+2), 9, 3, 700), true))
				require.NoError(t, l.Close())
				require.Len(t, contentOf(t, opened(t, o)).entries, 8)
			}
		})
	}
}

func TestDamageBelowTheTailIsReportedByReaders(t *testing.T) {
	mem := vfs.NewMem()
	o := options(mem)
	l := created(t, o)
	for i := uint64(2); i <= 40; i++ {
		require.NoError(t, l.Append(nil, entries(i, i, 2, 300), true))
	}
	name := o.path(segmentName(1))
	b, err := vfs.ReadFile(mem, name)
	require.NoError(t, err)
	at := bytes.Index(b, []byte("entry 10 "))
	f, err := mem.Open(name)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("E"), int64(at))
	require.NoError(t, err)
	_, err = l.Entries(2, 41, 1<<20)
	requireDamage(t, err, segmentName(1))
	_, err = l.Entries(35, 41, 1<<20)
	require.NoError(t, err, "what is in memory needs no disk")
}

// A value must be found as it is by whoever looks at the files with other tools.
func TestUserDataAreOnDiskVerbatim(t *testing.T) {
	_, all, _ := smallLog(t, lastFrames["Long"])
	require.Contains(t, string(all[segmentName(2)]), lastFrames["Long"])
}
