package replica

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/machine"
)

const (
	maxQueued      = 16_384   // commands; Enqueue refuses beyond it
	maxQueuedBytes = 16 << 20 // and their bytes
	maxPacked      = 512      // commands of one entry
	maxPackedBytes = 256 << 10
)

// queue holds encoded commands until they are packed.
type queue struct {
	cmds  [][]byte
	bytes int
}

// Enqueue queues an encoded command for the next entry. It refuses, and nothing
// happens, if this replica does not serve or the queue is full. cmd must not change
// any more. What is still queued when leadership is lost is dropped: see Work.Lost.
func (r *Replica) Enqueue(cmd []byte) (accepted bool) {
	q := &r.queue
	full := len(q.cmds) >= maxQueued || q.bytes+len(cmd) > maxQueuedBytes && len(q.cmds) > 0
	if !r.Serving() || full {
		return false
	}
	q.cmds = append(q.cmds, cmd)
	q.bytes += len(cmd)
	return true
}

// DropQueued forgets the commands that are queued and not packed, and returns how
// many they were: for a shell that tells their callers that nothing happened.
func (r *Replica) DropQueued() int {
	n := len(r.queue.cmds)
	r.queue = queue{}
	return n
}

// pack proposes all that is queued. There is no timer: what queues up while Depth
// appends are under way is the next batch.
func (r *Replica) pack(now Now) []Packed {
	if !r.office.serving || r.flight.entries >= r.depth || r.held {
		return nil
	}
	clock := r.office.clock(now.Mono)
	own, expires := r.chore(clock)
	if len(r.queue.cmds) == 0 && own == nil {
		return nil
	}
	stamp := machine.Stamp{Proposer: r.proposer, Number: r.number, Clock: clock, Wall: now.Wall}
	entries, packed := compose(stamp, r.queue.cmds, own)
	err := r.raw.Step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(r.id), Entries: entries})
	if err != nil { // not appended: a transfer is under way, or too much is not committed
		r.held = true
		return nil
	}
	r.number += uint64(len(entries))
	r.office.stamped(clock, expires)
	r.queue = queue{}
	return packed
}

// compose makes entries of the commands. The leader's own command comes last, so
// that the others keep their places and an Expire finds every renewal before it.
func compose(stamp machine.Stamp, cmds [][]byte, own []byte) (entries []*raftpb.Entry, packed []Packed) {
	for len(cmds) > 0 || own != nil {
		n, bytes := fit(cmds)
		part := cmds[:n:n]
		cmds = cmds[n:]
		stamp.Number++
		if n > 0 {
			packed = append(packed, Packed{Number: stamp.Number, Commands: n})
		}
		if len(cmds) == 0 && own != nil {
			part, own = append(part, own), nil
		}
		data := machine.AppendEntry(make([]byte, 0, bytes+4*len(part)+64), stamp, part)
		entries = append(entries, &raftpb.Entry{Data: data})
	}
	return entries, packed
}

// fit returns how many commands go into one entry: at least one.
func fit(cmds [][]byte) (n, bytes int) {
	for n < len(cmds) && n < maxPacked && (n == 0 || bytes+len(cmds[n]) <= maxPackedBytes) {
		bytes += len(cmds[n])
		n++
	}
	return n, bytes
}
