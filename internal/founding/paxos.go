package founding

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Ballot orders proposals.
type Ballot struct {
	Round uint64 `msgpack:"r"`
	ID    uint64 `msgpack:"i"` // raft id of the proposer
}

func (b Ballot) less(o Ballot) bool {
	return cmp.Or(cmp.Compare(b.Round, o.Round), cmp.Compare(b.ID, o.ID)) < 0
}

// State is what an acceptor must not forget. The new State of each call is on
// disk before the answer that comes with it is sent.
type State struct {
	Promised Ballot   `msgpack:"p"`
	Voted    Ballot   `msgpack:"b"` // ballot of Accepted
	Accepted *Genesis `msgpack:"a,omitempty"`
	Decided  *Genesis `msgpack:"d,omitempty"`
}

// Prepare asks for a promise (phase 1a).
type Prepare struct {
	Ballot Ballot `msgpack:"b"`
	Digest uint32 `msgpack:"g"`
}

// Accept asks for a vote (phase 2a).
type Accept struct {
	Ballot Ballot   `msgpack:"b"`
	Digest uint32   `msgpack:"g"`
	Value  *Genesis `msgpack:"v"`
}

// Reply answers both. A Reply that is not Ok, has no Decided and no Why is a nack
// with the ballot that was promised to another.
type Reply struct {
	From     Identity `msgpack:"f"`
	Ok       bool     `msgpack:"k"`
	Promised Ballot   `msgpack:"p"`
	Voted    Ballot   `msgpack:"b"`
	Accepted *Genesis `msgpack:"a,omitempty"`
	Decided  *Genesis `msgpack:"d,omitempty"`
	Why      string   `msgpack:"w,omitempty"` // refused for ever, for people
}

// ErrConflict reports two different decisions. It cannot happen while F1's bound
// on identities holds; the first one stands.
var ErrConflict = errors.New("founding: another genesis was decided here before")

// OnPrepare is the acceptor's phase 1b.
func (s State) OnPrepare(r *Rules, m Prepare) (State, Reply) {
	if rep, done := s.refuse(r, m.Digest); done {
		return s, rep
	}
	if !s.Promised.less(m.Ballot) {
		return s, Reply{From: r.Self, Promised: s.Promised}
	}
	s.Promised = m.Ballot
	return s, Reply{From: r.Self, Ok: true, Promised: m.Ballot, Voted: s.Voted, Accepted: s.Accepted}
}

// OnAccept is the acceptor's phase 2b.
func (s State) OnAccept(r *Rules, m Accept) (State, Reply) {
	if rep, done := s.refuse(r, m.Digest); done {
		return s, rep
	}
	if m.Value == nil {
		return s, Reply{From: r.Self, Why: "a vote for no value was asked"}
	}
	if m.Ballot.less(s.Promised) {
		return s, Reply{From: r.Self, Promised: s.Promised}
	}
	s.Promised, s.Voted, s.Accepted = m.Ballot, m.Ballot, m.Value
	return s, Reply{From: r.Self, Ok: true, Promised: m.Ballot}
}

// OnDecided learns the decision.
func (s State) OnDecided(g *Genesis) (State, error) {
	if s.Decided != nil && s.Decided.Hash() != g.Hash() {
		return s, ErrConflict
	}
	s.Decided = g
	return s, nil
}

func (s State) refuse(r *Rules, digest uint32) (Reply, bool) {
	switch {
	case s.Decided != nil:
		return Reply{From: r.Self, Decided: s.Decided}, true
	case r.Expect == 0:
		return Reply{From: r.Self, Why: fmt.Sprintf("%s only joins (Expect 0)", r.Self.Name)}, true
	case digest != r.Digest():
		return Reply{From: r.Self, Why: fmt.Sprintf("%s declares another Expect or Voters", r.Self.Name)}, true
	}
	return Reply{}, false
}

// Round is one proposal from its first to its last message.
type Round struct {
	rules    *Rules
	nonce    uint64
	ballot   Ballot
	promises map[uint64]Reply
	votes    map[uint64]Identity
	value    *Genesis
}

// Begin starts a round above every ballot this node knows of. nonce is random; it
// becomes the genesis' if this round may choose the value.
func Begin(r *Rules, s State, above Ballot, nonce uint64) *Round {
	b := Ballot{Round: max(s.Promised.Round, above.Round) + 1, ID: r.Self.ID}
	return &Round{rules: r, nonce: nonce, ballot: b, promises: map[uint64]Reply{}, votes: map[uint64]Identity{}}
}

// Prepare is the message of phase 1, for every candidate and for ourselves.
func (p *Round) Prepare() Prepare { return Prepare{Ballot: p.ballot, Digest: p.rules.Digest()} }

// OnPromise takes an answer to Prepare. It returns the message of phase 2 once
// enough have promised, for every candidate and for ourselves, and nil before and
// after that.
func (p *Round) OnPromise(rep Reply) *Accept {
	if !rep.Ok || rep.Promised != p.ballot || p.value != nil {
		return nil
	}
	p.promises[rep.From.ID] = rep
	ids := make([]Identity, 0, len(p.promises))
	for _, r := range p.promises {
		ids = append(ids, r.From)
	}
	if p.rules.enough(ids) != nil {
		return nil
	}
	p.value = p.choose(ids)
	return &Accept{Ballot: p.ballot, Digest: p.rules.Digest(), Value: p.value}
}

// choose returns the value that may already be chosen, which is that of the
// highest vote among the promises, or a new one if nobody voted.
func (p *Round) choose(ids []Identity) *Genesis {
	var last Reply
	for _, r := range p.promises {
		if r.Accepted != nil && (last.Accepted == nil || last.Voted.less(r.Voted)) {
			last = r
		}
	}
	if last.Accepted != nil {
		return last.Accepted
	}
	return &Genesis{
		Cluster: p.rules.Cluster, Nonce: p.nonce, Founder: p.rules.Self.ID,
		Voters: seat(ids, p.rules.Seats()),
	}
}

// OnVote takes an answer to Accept and returns the decision once enough have voted.
func (p *Round) OnVote(rep Reply) *Genesis {
	if !rep.Ok || rep.Promised != p.ballot || p.value == nil {
		return nil
	}
	p.votes[rep.From.ID] = rep.From
	ids := make([]Identity, 0, len(p.votes))
	for _, v := range p.votes {
		ids = append(ids, v)
	}
	slices.SortFunc(ids, byID)
	if p.rules.enough(ids) != nil {
		return nil
	}
	return p.value
}
