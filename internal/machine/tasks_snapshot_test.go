package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A damaged snapshot is refused, or it is a state that holds the invariants and goes
// on holding them whatever comes: no damage is met later, in the middle of an entry.
//
// Seen to fail: without the look for ids that were never minted, which mint would give again.
func TestADamagedSnapshotIsRefusedOrSound(t *testing.T) {
	paths, err := filepath.Glob("testdata/*s_*.txt")
	require.NoError(t, err)
	sound := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, state := range states(t, string(text)) {
			for i := range state {
				hurt := append([]byte(nil), state...)
				hurt[i] ^= [...]byte{1, 2, 4, 0x80, 0xff}[i%5]
				if live(t, hurt) {
					sound++
				}
				live(t, state[:i])
			}
		}
	}
	t.Logf("%d damaged ones were sound", sound)
	require.NotZero(t, sound, "no damage got in: the second half is not tested")
}

// states are the snapshots after every eighth entry of a script.
func states(t *testing.T, text string) (all [][]byte) {
	s := newScript(t)
	s.play(text)
	m := New()
	for i, entry := range s.log {
		_, err := m.Apply(uint64(i+1), m.term, entry)
		require.NoError(t, err)
		if i%8 == 7 {
			all = append(all, m.Encode())
		}
	}
	return all
}

// live restores a snapshot and lets time, expiry and work come over it.
func live(t *testing.T, snapshot []byte) bool {
	m := New()
	if m.Restore(snapshot) != nil {
		return false
	}
	again := New()
	require.NoError(t, again.Restore(m.Encode()))
	require.Equal(t, m.Digest(), again.Digest())
	var cmds [][]byte
	for _, id := range sortedKeys(m.sessions.byID) {
		s := m.sessions.byID[id]
		for _, c := range []struct {
			op   Op
			body Message
		}{{OpWant, &Want{Queue: "jobs", N: 3}}, {OpSubmit, &Submit{Queue: "jobs", Tasks: []TaskSpec{{OrderKey: "a", Unique: "u"}}}}} {
			s.window = window{floor: 1}
			cmds = append(cmds, Encode(&Cmd{Session: id, Seq: uint64(len(cmds) + 1), Op: c.op, Body: Encode(c.body)}))
		}
	}
	cmds = append(cmds,
		Encode(&Cmd{Op: OpExpire, Body: Encode(&Expire{Limit: 1})}),
		Encode(&Cmd{Op: OpOpenSession, Body: Encode(&OpenSession{TTL: 10, Node: "a", Boot: 1, Nonce: 77})}),
		Encode(&Cmd{Op: OpExpire, Body: Encode(&Expire{Limit: 100})}))
	_, err := m.Apply(m.applied+1, m.term, AppendEntry(nil, Stamp{Clock: later(m.clock, 1<<40)}, cmds))
	require.NoError(t, err)
	require.NoError(t, m.Check())
	return true
}
