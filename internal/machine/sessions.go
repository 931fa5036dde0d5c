package machine

import "slices"

// sessions is the table of the open sessions: who is there, until when, and which
// of its commands were answered.
type sessions struct {
	byID      map[SessionID]*session
	opened    map[opening]*session
	defaults  map[uint64][]*session // by origin, in the order in which they were opened
	deadlines heap[*session]
	parts     []part // what hangs on sessions
	limit     sessionLimit
}

// sessionLimit holds the bounds that apply consults; they are part of the state.
type sessionLimit struct {
	Sessions    uint64
	Outstanding uint64 // commands of one session whose answers are kept
	Answers     uint64 // bytes of those answers
}

// opening names the OpenSession that made a session, so that its copies find it.
type opening struct {
	node        string
	boot, nonce uint64
}

// session is one open session.
type session struct {
	id       SessionID
	opening  opening
	ttl      uint64
	origin   uint64 // of a default session: the directory of its node; else 0
	deadline uint64 // from here on an Expire may end it
	renewed  uint64 // raft term of its last renewal
	graced   bool   // its deadline was moved since, once
	ended    bool   // being taken down: not open any more
	grants   uint64 // waits that became holds
	assigned uint64 // tasks it was ever given; kept by tasks
	place    int    // in deadlines
	window   window
	requests map[uint64]*request // its holds and waits by the sequence of their Acquire
}

func (s *session) before(t *session) bool {
	return s.deadline < t.deadline || s.deadline == t.deadline && s.id < t.id
}

func (s *session) placed(i int) { s.place = i }

// open returns the session if it is open, else nil.
func (t *sessions) open(id SessionID) *session {
	if s := t.byID[id]; s != nil && !s.ended {
		return s
	}
	return nil
}

// begin opens a session. A copy finds the session that the first one opened.
func (t *sessions) begin(a *apply, c *OpenSession) Result {
	if why := checkName(c.Node); why != "" {
		return invalid("open session: node " + why)
	}
	if c.TTL == 0 {
		return invalid("open session: the TTL is 0")
	}
	key := opening{c.Node, c.Boot, c.Nonce}
	if s := t.opened[key]; s != nil {
		return Result{N: uint64(s.id)}
	}
	origin := c.Origin
	if !c.Default {
		origin = 0
	}
	if slices.ContainsFunc(t.defaults[origin], func(s *session) bool { return s.opening.boot > c.Boot }) {
		return Result{Code: Stale} // from a process that its own successor has replaced
	}
	if uint64(len(t.byID)) >= t.limit.Sessions {
		return Result{Code: Full, N: t.limit.Sessions}
	}
	for _, s := range slices.Clone(t.defaults[origin]) {
		if s.opening.boot < c.Boot {
			t.end(a, s, true)
		}
	}
	s := &session{id: SessionID(a.m.mint()), opening: key, ttl: c.TTL, origin: origin, renewed: a.term}
	s.window.floor = 1
	s.deadline = s.lease(a.clock)
	t.insert(s)
	a.m.tasks.opened(c.Node, c.Boot)
	return Result{N: uint64(s.id)}
}

func (t *sessions) insert(s *session) {
	t.byID[s.id] = s
	t.opened[s.opening] = s
	if s.origin != 0 {
		t.defaults[s.origin] = append(t.defaults[s.origin], s)
	}
	t.deadlines.push(s)
}

// lease is how long a renewal at clock lasts: a tenth longer than the holder
// believes, who on its side stops a tenth earlier (S1).
func (s *session) lease(clock uint64) uint64 { return later(clock, later(s.ttl, s.ttl/10)) }

// renew answers a KeepAlive. It is answered here, at apply, and nowhere else: an
// answer says that the renewal is in the log, before any Expire that could end it.
func (t *sessions) renew(a *apply, c *KeepAlive) Result {
	answer := KeepAliveAnswer{States: make([]SessionState, len(c.Sessions))}
	for i, id := range c.Sessions {
		s := t.open(id)
		if s == nil {
			continue
		}
		s.deadline, s.renewed, s.graced = s.lease(a.clock), a.term, false
		t.deadlines.fix(s.place)
		answer.States[i] = s.state()
	}
	return Result{Body: Encode(&answer)}
}

func (s *session) state() SessionState {
	return SessionState{Open: true, Grants: s.grants, Assigned: s.assigned}
}

// expire ends overdue sessions. It looks at the deadlines again, because a renewal
// may have come into the log before it, and it graces once per change of leader:
// owners could not renew while nobody led (protocol 18).
func (t *sessions) expire(a *apply, c *Expire) Result {
	var n uint64
	for range c.Limit {
		if len(t.deadlines) == 0 || t.deadlines[0].deadline > a.clock {
			break
		}
		s := t.deadlines[0]
		if a.term > s.renewed && !s.graced && c.Grace > 0 {
			s.graced, s.deadline = true, later(s.deadline, c.Grace)
			t.deadlines.fix(s.place)
			continue
		}
		t.end(a, s, true)
		n++
	}
	return Result{N: n}
}

// end closes a session and takes all that hangs on it down. crashed says that its
// owner did not ask for it.
func (t *sessions) end(a *apply, s *session, crashed bool) {
	s.ended = true
	a.tell(Event{Kind: EventClosed, Session: s.id})
	for _, p := range t.parts {
		p.ended(a, s.id, crashed)
	}
	delete(t.byID, s.id)
	delete(t.opened, s.opening)
	t.deadlines.remove(s.place)
	if s.origin == 0 {
		return
	}
	rest := slices.DeleteFunc(t.defaults[s.origin], func(d *session) bool { return d == s })
	if t.defaults[s.origin] = rest; len(rest) == 0 {
		delete(t.defaults, s.origin)
	}
}

func (t *sessions) query(q *Query) Result {
	s := t.open(q.Session)
	if s == nil {
		return Result{Code: NoSession}
	}
	state := s.state()
	return Result{Body: Encode(&state)}
}

// due does nothing: a session's end waits for an Expire (protocol 22).
func (t *sessions) due(*apply) {}

func (t *sessions) next() (uint64, bool) { return 0, false }

func (t *sessions) ended(*apply, SessionID, bool) {}

func (t *sessions) fields(k *coder) {
	k.u64(&t.limit.Sessions)
	k.u64(&t.limit.Outstanding)
	k.u64(&t.limit.Answers)
	ids := sortedKeys(t.byID)
	n := k.count(len(ids))
	for i := 0; i < n && k.err == nil; i++ {
		if !k.reading {
			t.byID[ids[i]].fields(k)
			continue
		}
		s := &session{}
		s.fields(k)
		if k.err == nil && t.byID[s.id] != nil {
			k.fail("session twice")
			return
		}
		t.insert(s)
	}
}

// fields leaves out requests: locks puts them back.
func (s *session) fields(k *coder) {
	k.u64((*uint64)(&s.id))
	k.str(&s.opening.node)
	k.u64(&s.opening.boot)
	k.u64(&s.opening.nonce)
	k.u64(&s.ttl)
	k.u64(&s.origin)
	k.u64(&s.deadline)
	k.u64(&s.renewed)
	k.flag(&s.graced)
	k.u64(&s.grants)
	k.u64(&s.assigned)
	s.window.fields(k)
}
