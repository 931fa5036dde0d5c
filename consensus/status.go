package consensus

// Status is what a node knows without asking anybody.
type Status struct {
	Leader    string            // "" while none is known
	Term      uint64            // of that leader
	Founder   string            // who proposed the cluster; "" before the founding
	Voters    []string          // in the order of their raft ids; empty before the founding
	Tolerates int               // voters that may fail before calls wait, of those that run now as far as the leader sees; elsewhere of all
	Applied   uint64            // index of the last entry applied here; 0 without a replica
	Hash      uint64            // of the state after it: equal on all replicas (R1)
	Lag       map[string]uint64 // at the leader: entries that each follower in touch lacks
}

// Status returns this node's view of the consensus. It does not block on anything
// remote.
func (e *Engine) Status() Status {
	s := Status{Voters: e.voterNames()}
	if g := e.founder.genesis(); g != nil {
		s.Founder = nameOf(g, g.Founder)
	}
	s.Term, s.Leader, _ = e.client.compass.read()
	up := len(s.Voters)
	if v := e.replica(); v != nil {
		v.status(&s)
		if s.Lag != nil {
			up = len(s.Lag) + 1
		}
	}
	if quorum := len(s.Voters)/2 + 1; up > quorum && len(s.Voters) > 0 {
		s.Tolerates = up - quorum
	}
	return s
}

func (v *voter) status(s *Status) {
	view := v.view.Load()
	s.Term, s.Leader = view.term, ""
	switch p := v.peers[view.leader]; {
	case view.leader == v.id:
		s.Leader = v.engine.cfg.Name
	case p != nil:
		s.Leader = p.name
	}
	if view.elected {
		s.Lag = map[string]uint64{}
	}
	for id, lag := range view.lag {
		s.Lag[v.peers[id].name] = lag
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	s.Applied, s.Hash = v.machine.Applied(), v.machine.Hash()
}
