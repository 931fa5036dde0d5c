package replica

import (
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// Now is what the shell's clocks say after the last command was taken (protocol 20):
// a time read earlier would let a renewal into an entry that is stamped before it
// was sent.
type Now struct {
	Mono uint64 // ns on a monotonic clock; only differences count
	Wall int64  // Unix ns, for schedules only
}

// Work is what one turn asks the shell to do. Its slices are the shell's.
type Work struct {
	Send   []*raftpb.Message // to peers, at once; a lost one is sent again
	Append []*raftpb.Message // for Persist, in order, none lost
	Apply  []*raftpb.Message // for ApplyEntries, in order, none lost
	Reads  []raft.ReadState  // rounds that are confirmed; ids of other callers may be among them

	Soft *raft.SoftState   // if the leader or the own role changed
	Conf *raftpb.ConfState // if the voters changed: the state after the entries acknowledged by the last Step

	Packed []Packed // entries that now hold queued commands, in the order of the queue
	Lost   bool     // leadership was lost: the outcome of every packed command is unknown, every queued one is dropped and did not happen
}

// Packed says that the next Commands of the queue are in the entry with Stamp.Number
// Number. Outcome.Answers of that entry begins with theirs, in their order.
type Packed struct {
	Number   uint64
	Commands int
}

// Ready packs queued commands if that is due, and returns what is to be done. It
// reports false if there is nothing; the shell calls it until then. A gap between
// two calls of more than an election timeout counts as a change of leader for the
// cluster clock: it stood still meanwhile (protocol 20).
func (r *Replica) Ready(now Now) (w Work, ok bool) {
	if r.err != nil {
		return Work{}, false
	}
	defer func() {
		if r.err != nil {
			w, ok = Work{}, false
		}
	}()
	defer r.contain("get ready")
	r.pass(now.Mono)
	w.Packed = r.pack(now)
	w.Conf, r.conf = r.conf, nil
	if !r.raw.HasReady() {
		return w, w.Conf != nil
	}
	rd := r.raw.Ready()
	w.Reads, w.Soft = rd.ReadStates, rd.SoftState
	w.Lost = r.observe(&rd)
	for _, m := range rd.Messages {
		r.dispatch(&w, m)
	}
	return w, true
}

// observe notes the role, and reports whether this replica ceased to lead.
func (r *Replica) observe(rd *raft.Ready) (lost bool) {
	led, term := r.state == raft.StateLeader, r.term
	if rd.SoftState != nil {
		r.state = rd.SoftState.RaftState
	}
	if rd.HardState != nil {
		r.term = rd.HardState.GetTerm()
	}
	if lost = led && (r.state != raft.StateLeader || r.term != term); lost {
		r.office = office{}
		r.queue = queue{}
		r.held, r.early = false, nil
	}
	return lost
}

func (r *Replica) dispatch(w *Work, m *raftpb.Message) {
	switch {
	case m.GetTo() == raft.LocalAppendThread:
		r.flight.launch(m)
		w.Append = append(w.Append, m)
	case m.GetTo() == raft.LocalApplyThread:
		w.Apply = append(w.Apply, m)
	case m.GetType() == raftpb.MsgSnap:
		// Snapshots do not travel as messages, and raft would wait for the end of
		// this one for ever.
		r.raw.ReportSnapshot(m.GetTo(), raft.SnapshotFailure)
	default:
		w.Send = append(w.Send, m)
	}
}

// flight counts the writes under way. Their responses come back in order.
type flight struct {
	expected []bool // for each response to come: whether its write has entries
	entries  int
}

func (f *flight) launch(m *raftpb.Message) {
	for _, resp := range m.GetResponses() {
		if resp.GetType() != raftpb.MsgStorageAppendResp {
			continue
		}
		has := len(m.GetEntries()) > 0
		f.expected = append(f.expected, has)
		if has {
			f.entries++
		}
	}
}

func (f *flight) land() {
	if len(f.expected) == 0 {
		return
	}
	if f.expected[0] {
		f.entries--
	}
	f.expected = f.expected[1:]
}
