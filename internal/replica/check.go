package replica

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// check refuses what raft would trip over.
func (r *Replica) check(m *raftpb.Message) error {
	from, own := m.GetFrom(), false
	switch t := m.GetType(); t {
	case raftpb.MsgStorageAppendResp:
		own = from == raft.LocalAppendThread
	case raftpb.MsgStorageApplyResp:
		own = from == raft.LocalApplyThread
	case raftpb.MsgAppResp, raftpb.MsgVoteResp, raftpb.MsgPreVoteResp:
		own = from == r.id // acknowledged by the own disk
	case raftpb.MsgApp, raftpb.MsgVote, raftpb.MsgPreVote, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp,
		raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTimeoutNow, raftpb.MsgTransferLeader:
	default: // snapshots among them: they do not travel as messages
		return fmt.Errorf("%w: type %v from %x", ErrRefused, t, from)
	}
	if m.GetTo() != r.id {
		return fmt.Errorf("%w: %v from %x is for %x, this is %x", ErrRefused, m.GetType(), from, m.GetTo(), r.id)
	}
	if own {
		return nil
	}
	if from == raft.None || from == r.id || raft.IsLocalMsgTarget(from) {
		return fmt.Errorf("%w: %v claims to be from %x", ErrRefused, m.GetType(), from)
	}
	return checkEntries(m)
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
