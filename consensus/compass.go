package consensus

import "sync"

// compass points to the leader as far as this node has heard. It is a hint: only
// the leader itself knows, and a wrong hint costs a round trip.
type compass struct {
	hint struct {
		sync.Mutex // guards what follows and changed
		term       uint64
		leader     string
	}
	changed chan struct{} // closed and replaced when the hint changes
}

// learn takes a hint. News of an older term is dropped; within a term the leader
// never changes.
func (p *compass) learn(term uint64, leader string) {
	p.hint.Lock()
	defer p.hint.Unlock()
	if term < p.hint.term || term == p.hint.term && (leader == "" || leader == p.hint.leader) {
		return
	}
	if leader == "" && p.hint.leader != "" {
		// An election is under way. Its outcome is unknown and the last leader may
		// still be the one: the hint stays until a name comes.
		return
	}
	p.hint.term, p.hint.leader = term, leader
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *compass) read() (term uint64, leader string, changed <-chan struct{}) {
	p.hint.Lock()
	defer p.hint.Unlock()
	return p.hint.term, p.hint.leader, p.changed
}
