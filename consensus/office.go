package consensus

import "go.etcd.io/raft/v3"

// tick gives the replica one tick of time, and watches the disk.
//
// With asynchronous storage a leader whose disk hangs goes on with its heartbeats
// and is never replaced. So a write that takes longer than Pace.DiskStall first
// costs it the leadership, and if the transfer does not succeed within an election
// timeout, silence: no tick, no message in or out, because every read round would
// reset the election timers of the others (protocol 8).
func (v *voter) tick() {
	l := &v.loop
	l.ticks++
	stuck := v.stall.age() > v.pace.DiskStall || v.poisoned()
	switch {
	case !stuck:
		l.handover = 0
		v.quiet.Store(false)
	case l.handover == 0 && l.role == raft.StateLeader:
		v.engine.cfg.Logger.Warn("consensus: the disk does not answer: leadership is given away", "after", v.stall.age())
		v.transfer()
		l.handover = 1
	case l.handover < v.pace.Election && l.role == raft.StateLeader:
		l.handover++
	default:
		v.silence()
	}
	if !v.quiet.Load() {
		l.rep.Tick()
	}
	v.publish()
}

func (v *voter) poisoned() bool {
	select {
	case <-v.broken:
		return true
	default:
		return false
	}
}

// silence keeps the replica from being heard. A follower with a hung disk is
// silent, too: it could acknowledge nothing, and must not keep a read round alive.
func (v *voter) silence() {
	if v.quiet.Swap(true) {
		return
	}
	v.leaveOffice()
}

// transfer hands the leadership to the follower that lacks least.
func (v *voter) transfer() {
	best, lag := uint64(0), uint64(0)
	lags, _ := v.followers()
	for id, behind := range lags {
		if best == 0 || behind < lag || behind == lag && id < best {
			best, lag = id, behind
		}
	}
	if best != 0 {
		v.loop.rep.Transfer(best)
	}
}

// followers returns, at the leader, how many entries each live follower lacks, and
// up to where all voters have the log, dead ones included. Live is who was active
// within an election timeout: raft clears its own flag at the end of each, so the
// flag alone would call everybody dead for a moment.
func (v *voter) followers() (lag map[uint64]uint64, match uint64) {
	l := &v.loop
	s := l.rep.Status()
	if s.RaftState != raft.StateLeader {
		l.active = nil
		return nil, 0
	}
	if l.active == nil {
		l.active = map[uint64]uint64{}
	}
	last := s.Progress[v.id].Match
	lag, match = map[uint64]uint64{}, last
	for id, p := range s.Progress {
		match = min(match, p.Match)
		if p.RecentActive {
			l.active[id] = l.ticks
		}
		if at, ever := l.active[id]; id != v.id && ever && l.ticks-at <= uint64(v.pace.Election) {
			lag[id] = last - min(last, p.Match)
		}
	}
	return lag, match
}

// settle compares what the replica is with what callers were told.
func (v *voter) settle() {
	l := &v.loop
	serving := l.role == raft.StateLeader && l.rep.Serving() && !v.quiet.Load()
	o := v.office()
	term := l.rep.Term()
	if o != nil && (!serving || o.term != term) {
		v.leaveOffice()
		o = nil
	}
	if serving && o == nil {
		v.seat.Store(&office{term: term, over: make(chan struct{})})
		v.engine.client.compass.learn(term, v.engine.cfg.Name)
		v.publish()
		v.engine.wake()
		return
	}
	was := v.view.Load()
	if was.leader != l.lead || was.term != term || was.elected != (l.role == raft.StateLeader) {
		if p := v.peers[l.lead]; p != nil {
			v.engine.client.compass.learn(term, p.name)
		}
		v.publish()
		v.engine.wake()
	}
}

// leaveOffice tells every waiter that nobody knows what became of its command, and
// every queued one that nothing did, then ends the office.
func (v *voter) leaveOffice() {
	v.waiting.fail()
	v.loop.rep.DropQueued() // or an entry would hold commands whose callers were told that it does not
	tell(v.loop.queued, notTaken)
	v.loop.queued = nil
	if o := v.seat.Swap(nil); o != nil {
		close(o.over)
		v.publish()
		v.engine.wake()
	}
}

// publish shows the outside what the loop knows.
func (v *voter) publish() {
	l := &v.loop
	lag, match := v.followers()
	v.view.Store(&view{
		leader: l.lead, term: l.rep.Term(), elected: l.role == raft.StateLeader,
		lag: lag, match: match,
	})
}
