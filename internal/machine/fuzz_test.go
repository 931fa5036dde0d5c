package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzApply feeds a machine arbitrary entries and queries. Nothing panics; after
// each entry the invariants hold, a second machine agrees, and a snapshot restores
// to the same state. A refused entry changes nothing.
func FuzzApply(f *testing.F) {
	for _, seed := range recordedLogs(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		m, twin := New(), New()
		for k := (coder{b: log, reading: true}); len(k.b) > 0 && k.err == nil; {
			var entry []byte
			k.bytes(&entry)
			before := m.Digest()
			_, err := m.Apply(m.applied+1, max(m.term, 1), entry)
			_, err2 := twin.Apply(twin.applied+1, max(twin.term, 1), entry)
			require.Equal(t, err, err2)
			if err != nil {
				require.Equal(t, before, m.Digest(), "a refused entry changed the state")
			}
			require.NoError(t, m.Check())
			require.Equal(t, m.Hash(), twin.Hash())
			twin = New()
			require.NoError(t, twin.Restore(m.Encode()))
			require.Equal(t, m.Digest(), twin.Digest())
			var q Query
			if Decode(entry, &q) == nil {
				m.Query(&q)
			}
		}
	})
}

// recordedLogs are the entries of the scripts, each with its length in front.
func recordedLogs(f *testing.F) (logs [][]byte) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(f, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(f, err)
		s := newScript(f)
		s.play(string(text))
		k := coder{}
		for i := range s.log {
			k.bytes(&s.log[i])
		}
		logs = append(logs, k.b)
	}
	return logs
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
