package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzApply feeds a machine arbitrary entries, commands and queries. Nothing panics;
// after each entry the invariants hold and a second machine agrees; a snapshot
// restores to the same state. A refused entry changes nothing.
//
// The input is a list of byte strings: an even first byte makes one a whole entry,
// an odd one a command, with the time since the one before it in front.
func FuzzApply(f *testing.F) {
	for _, seed := range recordedLogs(f) {
		f.Add(seed)
	}
	f.Add(chunks([][]byte{{0, 1, 1, 1, 1, 1, 0}, []byte("\x00garbage")}))
	f.Fuzz(func(t *testing.T, input []byte) {
		m, twin := New(), New()
		term := uint64(1)
		k := coder{b: input, reading: true}
		for step := 0; len(k.b) > 0 && k.err == nil; step++ {
			var chunk []byte
			k.bytes(&chunk)
			entry, raw := fuzzedEntry(m, chunk, &term)
			var before uint64
			if raw {
				before = m.Digest()
			}
			_, err := m.Apply(m.applied+1, term, entry)
			_, err2 := twin.Apply(twin.applied+1, term, entry)
			require.Equal(t, err, err2)
			if raw && err != nil {
				require.Equal(t, before, m.Digest(), "a refused entry changed the state")
			}
			require.NoError(t, m.Check())
			require.Equal(t, m.Hash(), twin.Hash())
			var q Query
			if Decode(chunk, &q) == nil {
				require.Equal(t, m.Query(&q), twin.Query(&q))
			}
			if step%8 == 7 || len(k.b) == 0 {
				twin = New()
				require.NoError(t, twin.Restore(m.Encode()))
				require.Equal(t, m.Digest(), twin.Digest())
			}
		}
	})
}

func fuzzedEntry(m *Machine, chunk []byte, term *uint64) (entry []byte, raw bool) {
	if len(chunk) == 0 || chunk[0]%2 == 0 {
		return chunk[min(1, len(chunk)):], true
	}
	*term += uint64(chunk[0] >> 7)
	c := coder{b: chunk[1:], reading: true}
	var passed uint64
	c.u64(&passed)
	clock := later(m.clock, passed)
	return AppendEntry(nil, Stamp{Clock: clock, Wall: int64(clock)}, [][]byte{c.b}), false
}

// recordedLogs are the entries of the scripts.
func recordedLogs(f *testing.F) (logs [][]byte) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(f, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(f, err)
		s := newScript(f)
		s.play(string(text))
		var all [][]byte
		clock := uint64(0)
		for _, entry := range s.log {
			stamp, cmds, err := DecodeEntry(entry)
			require.NoError(f, err)
			c := coder{b: []byte{1}}
			passed := stamp.Clock - clock
			clock = stamp.Clock
			c.u64(&passed)
			all = append(all, append(c.b, cmds[0]...))
		}
		logs = append(logs, chunks(all))
	}
	return logs
}

func chunks(all [][]byte) []byte {
	k := coder{}
	for i := range all {
		k.bytes(&all[i])
	}
	return k.b
}

// FuzzRestore restores arbitrary bytes: an error, or a state that holds the
// invariants and has one encoding.
func FuzzRestore(f *testing.F) {
	l := newLoad(f)
	hold(l, 5)
	f.Add(l.m.Encode())
	f.Add(New().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m := New()
		fresh := m.Digest()
		if m.Restore(b) != nil {
			require.Equal(t, fresh, m.Digest(), "a refused snapshot changed the state")
			return
		}
		require.NoError(t, m.Check())
		again := New()
		require.NoError(t, again.Restore(m.Encode()))
		require.Equal(t, m.Digest(), again.Digest())
	})
}
