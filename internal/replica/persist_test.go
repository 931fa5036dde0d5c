package replica

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"
)

func entriesOf(term uint64, indexes ...uint64) (all []*raftpb.Entry) {
	for _, i := range indexes {
		all = append(all, &raftpb.Entry{Index: new(i), Term: new(term)})
	}
	return all
}

func indexes(ents []*raftpb.Entry) (all [][2]uint64) {
	for _, e := range ents {
		all = append(all, [2]uint64{e.GetIndex(), e.GetTerm()})
	}
	return all
}

func TestQueuedAppendsAreOneWriteAndLaterEntriesReplaceEarlierOnes(t *testing.T) {
	d := newDisk(t, 1, 2, 3)
	a, b := &raftpb.Message{To: new(uint64(2))}, &raftpb.Message{To: new(uint64(3))}
	first := entriesOf(2, 2, 3, 4)
	resp, err := Persist(d, []*raftpb.Message{
		{Entries: first, Term: new(uint64(2)), Vote: new(uint64(1)), Commit: new(uint64(1)), Responses: []*raftpb.Message{a}},
		{Entries: entriesOf(3, 3), Term: new(uint64(3)), Vote: new(uint64(2)), Commit: new(uint64(2)), Responses: []*raftpb.Message{b}},
	})
	require.NoError(t, err)
	require.Equal(t, []*raftpb.Message{a, b}, resp)
	require.Equal(t, 1, d.writes)
	require.Equal(t, 1, d.syncs)
	got, err := d.Entries(2, 4, 1<<20)
	require.NoError(t, err)
	require.Equal(t, [][2]uint64{{2, 2}, {3, 3}}, indexes(got))
	hs, _, err := d.InitialState()
	require.NoError(t, err)
	require.EqualValues(t, 3, hs.GetTerm())
	require.Equal(t, [][2]uint64{{2, 2}, {3, 2}, {4, 2}}, indexes(first), "raft's own slice is not touched")
}

func TestACommitIndexAloneIsNotSyncedButATermIs(t *testing.T) {
	d := newDisk(t, 1)
	write := func(term, commit uint64) {
		_, err := Persist(d, []*raftpb.Message{{Term: new(term), Vote: new(uint64(0)), Commit: new(commit)}})
		require.NoError(t, err)
	}
	write(1, 1)
	require.Equal(t, 0, d.syncs)
	write(2, 1)
	require.Equal(t, 1, d.syncs)
	_, err := Persist(d, []*raftpb.Message{{Responses: []*raftpb.Message{{}}}})
	require.NoError(t, err)
	require.Equal(t, 2, d.writes, "nothing to write")
}

func TestAFailedWriteAcknowledgesNothing(t *testing.T) {
	d := newDisk(t, 1)
	d.broken = errors.New("EIO")
	resp, err := Persist(d, []*raftpb.Message{{Entries: entriesOf(1, 2), Responses: []*raftpb.Message{{}}}})
	require.ErrorIs(t, err, d.broken)
	require.Empty(t, resp)
	_, err = Persist(d, []*raftpb.Message{{Snapshot: &raftpb.Snapshot{}}})
	require.Error(t, err)
}
