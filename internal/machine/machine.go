package machine

// Machine is the replicated state: sessions and all that hangs on them.
type Machine struct {
	applied uint64 // raft index of the last entry
	clock   uint64 // cluster time of the last entry, ns
	wall    int64
	hash    uint64 // chain over all entries, answers and events so far
	rev     Rev    // last revision given
}

// apply is one command being applied: what it may read of the moment, and where
// its events go. Nothing else reaches a command, so that equal logs give equal
// states (R1).
type apply struct {
	m     *Machine
	index uint64
	term  uint64
	clock uint64
	wall  int64
	out   *Outcome
}

// part is one noun of the machine: sessions, locks, keys, counters, tasks.
type part interface {
	// due does, in the order (time, name), all that is due at a.clock.
	due(a *apply)
	// next is the cluster time at which something will be due.
	next() (clock uint64, some bool)
	// ended drops what hangs on a session that has just ended.
	ended(a *apply, s SessionID, crashed bool)
	// fields codes the whole part for a snapshot, in one order whatever its history.
	fields(k *coder)
}

// tell records an event that only its session is told.
func (a *apply) tell(e Event) { a.out.Events = append(a.out.Events, e) }

// change records an observable event under the next revision and returns that.
func (a *apply) change(e Event) Rev {
	a.m.rev++
	e.Rev = a.m.rev
	a.out.Events = append(a.out.Events, e)
	return e.Rev
}
