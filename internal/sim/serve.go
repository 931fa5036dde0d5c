package sim

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"go.etcd.io/raft/v3"

	"github.com/clatter-go/clatter/internal/machine"
)

// request is a command or a query of a client.
type request struct {
	client *client
	call   uint64
	cmd    []byte
	query  *machine.Query
}

// verdict says what became of a request.
type verdict uint8

const (
	answered  verdict = iota
	notTaken          // certainly nothing happened: lead is a hint
	uncertain         // the leader lost its office
)

// reply answers a request.
type reply struct {
	call    uint64
	verdict verdict
	result  machine.Result
	lead    uint64
}

// ask is the arrival of a request.
func (n *node) ask(r request) {
	if n.up() {
		n.asked = append(n.asked, r)
		n.wake()
	}
}

// hear takes a request up.
func (n *node) hear(r request) {
	switch {
	case r.query != nil && n.w.cfg.mutant.is(readLocally):
		n.reply(r, answered, n.machine.Query(r.query))
	case r.query != nil:
		n.reads.join(n, r)
	case n.w.cfg.mutant.shortcut(n, r):
	case n.rep.Enqueue(r.cmd):
		n.queued = append(n.queued, r)
	default:
		n.reply(r, notTaken, machine.Result{})
	}
}

func (n *node) reply(r request, v verdict, result machine.Result) {
	n.w.note("reply", n.at, r.call, uint64(v)<<32|uint64(result.Code))
	one := reply{call: r.call, verdict: v, result: result, lead: n.lead}
	n.w.net.send(n.at, r.client.at, func() { r.client.hear(one) })
}

// abandon tells everybody that the office is lost.
func (n *node) abandon() {
	for _, number := range slices.Sorted(maps.Keys(n.waiting)) {
		for _, r := range n.waiting[number] {
			n.w.stats.Unknown++
			n.reply(r, uncertain, machine.Result{})
		}
	}
	for _, r := range n.queued {
		n.reply(r, notTaken, machine.Result{})
	}
	n.queued, n.waiting = nil, map[uint64][]request{}
}

// tell answers those who wait for an entry and pushes its events.
func (n *node) tell(out *machine.Outcome) {
	if out.Stamp.Proposer != n.id<<32|n.boot {
		return
	}
	for i, r := range n.waiting[out.Stamp.Number] {
		n.reply(r, answered, out.Answers[i].Result)
	}
	delete(n.waiting, out.Stamp.Number)
	for i := range out.Events {
		e := out.Events[i]
		if c := n.w.owner(e.Session); c != nil {
			n.w.net.send(n.at, c.at, func() { c.notice(&e) })
		}
	}
}

// owner finds the client of a session.
func (w *world) owner(id machine.SessionID) *client {
	for _, c := range w.clients {
		if id != 0 && c.session.id == id {
			return c
		}
	}
	return nil
}

// reads runs queries in rounds: one is under way, whoever comes meanwhile joins the
// next. A round that got lost is repeated under another number.
type reads struct {
	round   uint64
	running bool
	batch   []request // of the round under way
	next    []request
	ready   []confirmed
}

// confirmed is a batch that may be answered once index is applied.
type confirmed struct {
	index uint64
	batch []request
}

func (q *reads) join(n *node, r request) {
	q.next = append(q.next, r)
	if !q.running {
		q.begin(n)
	}
}

func (q *reads) begin(n *node) {
	q.batch, q.next = append(q.batch, q.next...), nil
	q.running = len(q.batch) > 0
	if !q.running {
		return
	}
	q.round++
	round := q.round
	n.rep.ReadIndex(q.id(n))
	n.later(4*n.w.tick, func() {
		if q.running && q.round == round {
			q.begin(n)
			n.wake()
		}
	})
}

func (q *reads) id(n *node) []byte {
	id := binary.BigEndian.AppendUint64(nil, n.id<<32|n.boot)
	return binary.BigEndian.AppendUint64(id, q.round)
}

func (q *reads) confirm(n *node, s raft.ReadState) {
	if !q.running || !bytes.Equal(s.RequestCtx, q.id(n)) {
		return // of a round that was given up, or of a former boot
	}
	q.ready = append(q.ready, confirmed{s.Index, q.batch})
	q.batch, q.running = nil, false
}

// answerReads answers what is confirmed and applied.
func (n *node) answerReads() {
	q := &n.reads
	for len(q.ready) > 0 && q.ready[0].index <= n.machine.Applied() {
		for _, r := range q.ready[0].batch {
			n.w.stats.Reads++
			n.reply(r, answered, n.machine.Query(r.query))
		}
		q.ready = q.ready[1:]
	}
	if !q.running && len(q.next) > 0 {
		q.begin(n)
		n.wake()
	}
}
