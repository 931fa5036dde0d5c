package wal

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/vfs"
)

// indefinite makes batches for ever: entries are immutable once they were appended, so
// each batch is new, made outside of what is measured as far as numbers go.
type indefinite struct {
	next uint64
	data []byte
}

func (g *indefinite) batch(n int) []*raftpb.Entry {
	type numbered struct {
		e           raftpb.Entry
		index, term uint64
	}
	all, ents := make([]numbered, n), make([]*raftpb.Entry, n)
	for i := range all {
		a := &all[i]
		a.index, a.term = g.next, 1
		a.e.Index, a.e.Term, a.e.Data = &a.index, &a.term, g.data
		ents[i] = &a.e
		g.next++
	}
	return ents
}

// BenchmarkAppend appends batches of 256-byte entries and syncs each. Its two
// allocations are the entries themselves.
func BenchmarkAppend(b *testing.B) {
	for _, disk := range []string{"OS", "Mem"} {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", disk, n), func(b *testing.B) {
				o := Options{FS: vfs.OS(), Dir: b.TempDir(), RaftID: 7}
				if disk == "Mem" {
					o.FS = vfs.NewMem()
				}
				l := created(b, o)
				g := indefinite{next: 2, data: make([]byte, 256)}
				for i := range g.data {
					g.data[i] = byte(i)
				}
				b.ReportAllocs()
				for b.Loop() {
					require.NoError(b, l.Append(nil, g.batch(n), true))
				}
				b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "entries/s")
				require.NoError(b, l.Close())
			})
		}
	}
}

// BenchmarkFloor is what BenchmarkAppend on the real disk cannot beat: the same bytes
// written and synced, without a log.
func BenchmarkFloor(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f, err := vfs.OS().Create(filepath.Join(b.TempDir(), "floor"))
			require.NoError(b, err)
			require.NoError(b, f.Preallocate(defaultSegmentBytes))
			data, at := make([]byte, 256*n), int64(0)
			for b.Loop() {
				if at+int64(len(data)) > defaultSegmentBytes {
					at = 0
				}
				_, err := f.WriteAt(data, at)
				require.NoError(b, err)
				require.NoError(b, f.Sync())
				at += int64(len(data))
			}
			require.NoError(b, f.Close())
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	o := Options{Dir: b.TempDir(), RaftID: 7}
	l := created(b, o)
	g := indefinite{next: 2, data: make([]byte, 256)}
	for l.Bytes() < 64<<20 {
		require.NoError(b, l.Append(nil, g.batch(512), true))
	}
	b.SetBytes(l.Bytes())
	require.NoError(b, l.Close())
	b.ReportAllocs()
	for b.Loop() {
		l, err := Open(o)
		require.NoError(b, err)
		require.NoError(b, l.Close())
	}
}

// BenchmarkReadBack reads 1 MiB of entries that are no longer in memory.
func BenchmarkReadBack(b *testing.B) {
	o := Options{Dir: b.TempDir(), RaftID: 7, TailBytes: 1}
	l := created(b, o)
	g := indefinite{next: 2, data: make([]byte, 256)}
	for range 200 {
		require.NoError(b, l.Append(nil, g.batch(100), true))
	}
	b.ReportAllocs()
	b.SetBytes(1 << 20)
	for b.Loop() {
		ents, err := l.Entries(10_050, 20_001, 1<<20)
		require.NoError(b, err)
		require.Greater(b, len(ents), 3000)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	l := created(t, Options{Dir: t.TempDir(), RaftID: 7, TailBytes: 64 << 10})
	g := indefinite{next: 2, data: make([]byte, 256)}
	for range 300 { // grow what grows once
		require.NoError(t, l.Append(nil, g.batch(1), true))
	}
	var batches [][]*raftpb.Entry
	for range 201 {
		batches = append(batches, g.batch(1))
	}
	commit := hard(2, 1, 1)
	i := 0
	allocs := testing.AllocsPerRun(200, func() {
		*commit.Commit = batches[i][0].GetIndex()
		if err := l.Append(commit, batches[i], true); err != nil {
			t.Error(err)
		}
		i++
	})
	require.Zero(t, allocs)
}
