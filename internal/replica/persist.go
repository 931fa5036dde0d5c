package replica

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Log is what Persist writes to; *wal.Log is one.
type Log interface {
	// InitialState returns the HardState that Append wrote last.
	InitialState() (*raftpb.HardState, *raftpb.ConfState, error)
	// Append writes all or, after an error, nothing that is ever acknowledged. hs
	// may be nil. Entries replace those of the same and of higher indexes.
	Append(hs *raftpb.HardState, ents []*raftpb.Entry, sync bool) error
}

// Persist carries out messages of Work.Append, all that queued up while the last
// write ran: one write, at most one fsync. It returns the responses, which the
// shell delivers in order: to Step if they are for this replica, else to the peer.
// After an error nothing of this call may be acknowledged; the same messages can be
// given again if the log says that nothing was written.
func Persist(log Log, msgs []*raftpb.Message) ([]*raftpb.Message, error) {
	var hs *raftpb.HardState
	var ents []*raftpb.Entry
	var responses []*raftpb.Message
	for _, m := range msgs {
		if m.GetSnapshot() != nil {
			return nil, errors.New("persist: a snapshot does not travel as a message")
		}
		if m.Term != nil { // raft sets the three of them together
			hs = &raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}
		}
		ents = overwrite(ents, m.GetEntries())
		responses = append(responses, m.GetResponses()...)
	}
	if hs == nil && len(ents) == 0 {
		return responses, nil
	}
	sync, err := mustSync(log, hs, ents)
	if err != nil {
		return nil, err
	}
	if err := log.Append(hs, ents, sync); err != nil {
		return nil, err
	}
	return responses, nil
}

// overwrite appends later entries, which replace those from their first index on.
func overwrite(ents, later []*raftpb.Entry) []*raftpb.Entry {
	if len(later) == 0 {
		return ents
	}
	for len(ents) > 0 && ents[len(ents)-1].GetIndex() >= later[0].GetIndex() {
		ents = ents[:len(ents)-1]
	}
	return append(ents, later...)
}

// mustSync spares the fsync of a mere commit index: it is known again from the
// leader, and no response depends on it (Raft, figure 2, persistent state). A term
// or a vote is synced even if nothing responds to it, so that whatever a later
// response without a write depends on is on disk.
func mustSync(log Log, hs *raftpb.HardState, ents []*raftpb.Entry) (bool, error) {
	if len(ents) > 0 || hs == nil {
		return len(ents) > 0, nil
	}
	was, _, err := log.InitialState()
	if err != nil {
		return false, err
	}
	return raft.MustSync(hs, was, 0), nil
}
