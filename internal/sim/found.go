package sim

import (
	"fmt"

	"github.com/clatter-go/clatter/internal/founding"
)

// founder is a node before it has a log: it takes part in the founding.
type founder struct {
	state founding.State  // on disk before each answer leaves
	high  founding.Ballot // the highest that was heard of
	round *founding.Round // lost in a crash
}

func (w *world) identity(at int) founding.Identity {
	return founding.Identity{ID: uint64(at + 1), Name: fmt.Sprint("n", at), Addr: fmt.Sprint("h", at), Durable: true}
}

func (n *node) rules() *founding.Rules {
	size := len(n.w.nodes)
	return &founding.Rules{Cluster: "sim", Expect: size, Voters: size, Self: n.w.identity(n.at)}
}

// found proposes now and then until the genesis is known here. Several do at once,
// and each may forget its round and start over.
func (n *node) found() {
	if n.genesis != nil {
		return
	}
	if n.w.chance(5) {
		n.founder.round = nil // crashed and came back
	}
	f := &n.founder
	f.round = founding.Begin(n.rules(), f.state, f.high, n.w.rnd.Uint64())
	p := f.round.Prepare()
	n.w.note("prepare", n.at, p.Ballot.Round, 0)
	for _, o := range n.w.nodes {
		n.w.net.send(n.at, o.at, func() {
			var r founding.Reply
			o.founder.state, r = o.founder.state.OnPrepare(o.rules(), p)
			n.w.net.send(o.at, n.at, func() { n.promised(r) })
		})
	}
	n.w.after(n.w.between(10*millisecond, 120*millisecond), n.found)
}

func (n *node) promised(r founding.Reply) {
	f := &n.founder
	if n.learn(r) || f.round == nil {
		return
	}
	a := f.round.OnPromise(r)
	if a == nil {
		return
	}
	for _, o := range n.w.nodes {
		n.w.net.send(n.at, o.at, func() {
			var r founding.Reply
			o.founder.state, r = o.founder.state.OnAccept(o.rules(), *a)
			n.w.net.send(o.at, n.at, func() { n.voted(r) })
		})
	}
}

func (n *node) voted(r founding.Reply) {
	if n.learn(r) || n.founder.round == nil {
		return
	}
	if g := n.founder.round.OnVote(r); g != nil {
		n.decide(g)
	}
}

// learn takes what a reply says besides its answer.
func (n *node) learn(r founding.Reply) (decided bool) {
	if r.Decided != nil {
		n.decide(r.Decided)
	}
	if n.founder.high.Round < r.Promised.Round {
		n.founder.high = r.Promised
	}
	return n.genesis != nil
}

// decide makes the node a voter of the cluster, if it is not one yet.
func (n *node) decide(g *founding.Genesis) {
	n.w.check.founded(g)
	if n.genesis != nil || n.w.err != nil {
		return
	}
	state, err := n.founder.state.OnDecided(g)
	if err != nil {
		n.w.fail("F1: node %d: %w", n.id, err)
		return
	}
	n.founder.state, n.genesis = state, g
	n.w.note("founded", n.at, g.Nonce, g.Founder)
	if err := n.create(); err != nil {
		n.w.fail("node %d makes its log: %w", n.id, err)
		return
	}
	n.start()
	if n.up() && g.Founder == n.id {
		n.rep.Campaign()
	}
}
