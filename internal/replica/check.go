package replica

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// check refuses what raft would trip over.
func (r *Replica) check(m *raftpb.Message) error {
	t, from := m.GetType(), m.GetFrom()
	switch {
	case m.GetTo() != r.id:
		return fmt.Errorf("%w: %v from %x is for %x, this is %x", ErrRefused, t, from, m.GetTo(), r.id)
	case t == raftpb.MsgStorageAppendResp && from == raft.LocalAppendThread,
		t == raftpb.MsgStorageApplyResp && from == raft.LocalApplyThread,
		acknowledges(t) && from == r.id:
		return nil // of the own disk and machine
	case !travels(t):
		return fmt.Errorf("%w: type %v from %x", ErrRefused, t, from)
	case from == raft.None || from == r.id || raft.IsLocalMsgTarget(from):
		return fmt.Errorf("%w: %v claims to be from %x", ErrRefused, t, from)
	}
	return checkEntries(m)
}

// acknowledges reports whether raft waits with such a message until a write is durable.
func acknowledges(t raftpb.MessageType) bool {
	return t == raftpb.MsgAppResp || t == raftpb.MsgVoteResp || t == raftpb.MsgPreVoteResp
}

// travels reports whether peers send such messages to each other. Proposals are not
// forwarded, and snapshots do not travel as messages.
func travels(t raftpb.MessageType) bool {
	switch t {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp,
		raftpb.MsgTimeoutNow, raftpb.MsgTransferLeader:
		return true
	}
	return false
}

func checkEntries(m *raftpb.Message) error {
	entries := m.GetEntries()
	switch m.GetType() {
	case raftpb.MsgReadIndex, raftpb.MsgReadIndexResp:
		if len(entries) != 1 || entries[0] == nil {
			return fmt.Errorf("%w: %v from %x has %d ids", ErrRefused, m.GetType(), m.GetFrom(), len(entries))
		}
	case raftpb.MsgApp:
		index, term := m.GetIndex(), m.GetLogTerm()
		for _, e := range entries {
			index++
			if e.GetIndex() != index || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
				return fmt.Errorf("%w: entry %d of term %d from %x does not follow entry %d of term %d",
					ErrRefused, e.GetIndex(), e.GetTerm(), m.GetFrom(), index-1, term)
			}
			term = e.GetTerm()
		}
	}
	return nil
}
