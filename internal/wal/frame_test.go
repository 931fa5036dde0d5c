package wal

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/vfs"
)

func TestAFrameOfZerosHasNoSectorThatLooksUnwritten(t *testing.T) {
	for _, off := range []int64{96, 496, 512, 1024 - 16} {
		for _, fill := range []byte{0, 1, 'x'} {
			payload := bytes.Repeat([]byte{fill}, 5000)
			if fill == 1 {
				for i := range payload {
					payload[i] = byte(i % 300 / 299) // a byte here and there
				}
			}
			b, chain := seal(append(zeroHead(), payload...), off, 17, 4711)
			require.Zero(t, len(b)%frameAlign)
			for at := int64(0); at < int64(len(b)); {
				next := min((off+at)/vfs.SectorBytes*vfs.SectorBytes+vfs.SectorBytes-off, int64(len(b)))
				require.False(t, allZero(b[at:next]))
				at = next
			}
			require.Equal(t, fill == 'x', bytes.Contains(b, payload), "masked only if need be")
			f, ok := parseHead(b, 4711)
			require.True(t, ok)
			require.Equal(t, chain, f.sum)
			got, ok := f.open(b, 17, 4711)
			require.True(t, ok)
			require.Equal(t, payload, got)
			_, ok = parseHead(b, 4712)
			require.False(t, ok, "a frame of another segment is none")
		}
	}
}

func TestEntryBytesIsTheSizeThatRaftCounts(t *testing.T) {
	for _, e := range []*raftpb.Entry{
		{}, {Data: []byte{}}, {Data: make([]byte, 127)}, {Data: make([]byte, 128)}, entry(0, 0, ""), entry(127, 128, "x"), entry(1<<63, 1<<35-1, "x"),
		{Type: raftpb.EntryConfChangeV2.Enum(), Index: new(uint64(9))},
	} {
		require.EqualValues(t, proto.Size(e), entryBytes(e), "%v", e)
	}
}

// FuzzFrame feeds bytes to everything that reads a log: nothing may panic, allocate
// beyond its input, or take what was not written; and what is written comes back.
func FuzzFrame(f *testing.F) {
	ents := []*raftpb.Entry{entry(2, 1, "hello"), entry(3, 1, "world"), {Index: new(uint64(4)), Term: new(uint64(2)), Type: raftpb.EntryConfChangeV2.Enum()}}
	record := appendRecord(nil, &hardState{3, 2, 1}, &marker{1, 1, []byte{8, 7}}, ents)
	sealed, _ := seal(append(zeroHead(), record...), 96, 1, 2)
	f.Add(record, int64(96), uint32(1), uint32(2))
	f.Add(sealed, int64(96), uint32(1), uint32(2))
	f.Add(make([]byte, 2000), int64(512), uint32(0), uint32(0))
	f.Add([]byte{hasEntries, 0xff, 0xff, 0xff, 0xff, 0x0f, 2}, int64(0), uint32(0), uint32(0))
	f.Fuzz(func(t *testing.T, b []byte, off int64, chain, salt uint32) {
		off = off & 0xffff &^ (frameAlign - 1)
		readAll(t, bytes.Clone(b), chain, salt)
		written, sum := seal(append(zeroHead(), b...), off, chain, salt)
		segment := append(append(make([]byte, off), written...), make([]byte, 1500)...)
		clean := bytes.Clone(segment)
		h, ok := parseHead(segment[off:], salt)
		require.True(t, ok)
		got, ok := h.open(segment[off:], chain, salt)
		require.True(t, ok)
		require.True(t, bytes.Equal(b, got))
		require.Equal(t, sum, h.sum)
		for at := off; at < off+int64(len(written)); at += max(1, int64(len(written)/9)) {
			clean[at] ^= 1 << (at % 8)
			h, ok := parseHead(clean[off:], salt)
			if ok {
				_, ok = h.open(bytes.Clone(clean[off:]), chain, salt)
			}
			require.False(t, ok, "a flipped bit at %d", at)
			_, reason := tear(clean, int(off), salt)
			require.NotEmpty(t, reason, "a flipped bit at %d passes for a torn write", at)
			clean[at] ^= 1 << (at % 8)
		}
	})
}

func readAll(t *testing.T, b []byte, chain, salt uint32) {
	if h, ok := parseHead(b, salt); ok {
		h.open(b, chain, salt)
	}
	tear(b, 0, salt)
	r, ok := parseRecord(b)
	n := 0
	for s := new(stored); ok && r.entries.next(s); n++ {
		require.Equal(t, s.index, s.message().GetIndex())
	}
	require.LessOrEqual(t, n, len(b))
	o := Options{FS: vfs.NewMem(), Dir: "d", RaftID: 1}
	require.NoError(t, o.complete())
	_, _ = parseSegmentHead(b, "d/x", &o)
	require.NoError(t, o.FS.MkdirAll(o.Dir))
	require.NoError(t, vfs.WriteFile(o.FS, filepath.Join(o.Dir, snapshotName(1)), b))
	s, err := o.openSnapshot(&marker{index: 1, term: 1})
	if err == nil {
		_, _ = io.Copy(io.Discard, s)
		require.NoError(t, s.Close())
	}
}
