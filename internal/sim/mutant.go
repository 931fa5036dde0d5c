package sim

import (
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/machine"
)

// mutant is a rule that a run breaks on purpose: the tests demand that some seed
// notices. Each stands for an error that the code around the cores could have.
type mutant uint8

const (
	sound                mutant = iota
	ackBeforeSync               // responses go to peers before the write that they depend on is durable
	staleNow                    // the stamp is read before the commands are taken (protocol 20 a)
	expireUnchecked             // sessions are ended as the leader saw them when it proposed that (QU-07)
	renewInMemory               // a renewal is answered from the leader's memory and not logged (protocol 16)
	noDedup                     // a repeated command gets a new sequence
	beliefFromAnswer            // the owner believes from the answer on, not from the send
	beliefFromLastSend          // an answer counts for the latest renewal sent (protocol 20 c)
	believeUntilReleased        // the belief ends with the answer to the release, not before its send (protocol 12)
	readLocally                 // queries are answered without a round of confirmation
	alterEntry                  // one replica applies something else than the others
	forgetSnapshot              // a restart goes on from a snapshot without its state
	mutants
)

func (m mutant) is(other mutant) bool { return m == other }

// hasty sends the responses that go to peers before the write.
func (m mutant) hasty(n *node, msgs []*raftpb.Message) {
	if m != ackBeforeSync {
		return
	}
	for _, w := range msgs {
		for _, resp := range w.GetResponses() {
			if resp.GetTo() != n.id {
				n.send(resp)
			}
		}
	}
}

// overrule lets a leader end overdue sessions by a command that does not look at
// their deadlines again.
func (m mutant) overrule(n *node) {
	if m != expireUnchecked || !n.rep.Serving() {
		return
	}
	for _, c := range n.w.clients {
		id := c.session.id
		if c.session.until == 0 || n.machine.Query(&machine.Query{Kind: machine.QuerySession, Session: id}).Code != machine.OK {
			continue
		}
		overdue, some := n.machine.Expirable()
		if some && overdue <= n.machine.Clock()+n.w.faults.ttl/2 {
			n.rep.Enqueue(machine.Encode(&machine.Cmd{Session: id, Seq: 1 << 40, Op: machine.OpCloseSession}))
			n.queued = append(n.queued, request{client: c})
		}
	}
}

// shortcut answers a renewal out of the leader's memory, and reports whether it did.
func (m mutant) shortcut(n *node, r request) bool {
	var c machine.Cmd
	var k machine.KeepAlive
	if m != renewInMemory || !n.rep.Serving() || machine.Decode(r.cmd, &c) != nil || c.Op != machine.OpKeepAlive || machine.Decode(c.Body, &k) != nil {
		return false
	}
	a := machine.KeepAliveAnswer{States: make([]machine.SessionState, len(k.Sessions))}
	for i, id := range k.Sessions {
		q := n.machine.Query(&machine.Query{Kind: machine.QuerySession, Session: id})
		_ = machine.Decode(q.Body, &a.States[i]) // not open leaves it zero
	}
	n.reply(r, answered, machine.Result{Body: machine.Encode(&a)})
	return true
}

// renumber gives a repeated command a new sequence.
func (m mutant) renumber(c *client, k *call) {
	var cmd machine.Cmd
	if m != noDedup || k.cmd == nil || machine.Decode(k.cmd, &cmd) != nil || cmd.Op != machine.OpAdd {
		return
	}
	c.session.seq++
	cmd.Seq, cmd.Floor, cmd.Done = c.session.seq, 0, nil
	k.cmd = machine.Encode(&cmd)
}

// alter changes one entry on its way into one replica.
func (m mutant) alter(n *node, msg *raftpb.Message) *raftpb.Message {
	if m != alterEntry || n.id != 1 || !n.w.chance(50) {
		return msg
	}
	msg = proto.Clone(msg).(*raftpb.Message)
	for _, e := range msg.GetEntries() {
		if s, cmds, err := machine.DecodeEntry(e.GetData()); err == nil {
			s.Wall++
			e.Data = machine.AppendEntry(nil, s, cmds)
		}
	}
	return msg
}
