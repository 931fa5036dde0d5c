package machine

import "cmp"

// locks has the locks and, in a space of its own, the elections: an election is a
// lock whose holder announces a value and whose changes can be observed.
type locks struct {
	byName   [2]map[string]*lock // by Space
	delays   heap[delay]         // one for each lock with a running delay
	sessions *sessions
	limit    lockLimit
}

// lockLimit holds the bounds that apply consults; they are part of the state.
type lockLimit struct {
	Waiters uint64 // of one lock
	Edges   uint64 // looked at in one search for a deadlock; beyond it the wait is let in
}

const (
	maxLabel   = 1 << 10
	maxValue   = 64 << 10
	maxLineage = 64
)

// lock is one name. Its record outlives its holders, because last does (L2).
type lock struct {
	name        string
	space       Space
	last        Token    // the last one given
	freeAt      uint64   // until then nobody is granted; 0 if no delay runs
	holder      *request // nil while free
	first, tail *request // the line
	waiting     uint64   // its length
}

// request is an Acquire that was let in: a wait, and once it has a token, a hold.
// (session, seq) is its identity for ever (protocol 12).
type request struct {
	lock       *lock
	session    *session
	seq        uint64
	token      Token
	since      int64 // wall clock, for people
	prev, next *request
	more       *details // nil if all of it is zero, as it mostly is
}

// details is what few requests have, kept apart because there may be very many holds.
type details struct {
	label     string
	value     []byte
	lineage   []HoldRef
	lockDelay uint64
	score     uint64
	under     []*request // waits made in the context of this hold, by (session, seq)
}

func (r *request) detail() *details {
	if r.more == nil {
		return &details{}
	}
	return r.more
}

func (r *request) ref() HoldRef { return HoldRef{r.session.id, r.seq} }

func (r *request) held() bool { return r.token != 0 }

// delay is the end of a lock's delay.
type delay struct {
	at   uint64
	lock *lock
}

func (d delay) before(e delay) bool {
	return cmp.Or(cmp.Compare(d.at, e.at), cmp.Compare(d.lock.space, e.lock.space), cmp.Compare(d.lock.name, e.lock.name)) < 0
}

func (delay) placed(int) {}

// acquire grants a free lock, or lets the request into the line.
func (l *locks) acquire(a *apply, s *session, c *Acquire) Result {
	if why := c.check(); why != "" {
		return invalid("acquire: " + why)
	}
	k := l.named(c.Space, c.Name)
	if c.Try && !k.grantable() {
		return Result{Code: Locked, N: k.waiting, Body: Encode(k.info(tryInfo))}
	}
	if k.waiting >= l.limit.Waiters {
		return Result{Code: Full, N: l.limit.Waiters}
	}
	r := &request{lock: k, session: s, seq: a.seq, since: a.wall, more: c.details()}
	place := k.join(r)
	if s.requests == nil {
		s.requests = map[uint64]*request{}
	}
	s.requests[r.seq] = r
	if k.grant(a, r); k.holder == r {
		return Result{Token: r.token}
	}
	if cycle := l.deadlock(r); cycle != nil {
		k.leave(r)
		delete(s.requests, r.seq)
		return Result{Code: Deadlock, Body: Encode(cycle)}
	}
	l.hang(r)
	return Result{Code: Queued, N: place}
}

func (c *Acquire) check() string {
	switch {
	case c.Space != SpaceLock && c.Space != SpaceElection:
		return "unknown space"
	case len(c.Label) > maxLabel:
		return "label is longer than 1 KiB"
	case len(c.Value) > maxValue:
		return "value is larger than 64 KiB"
	case len(c.Lineage) > maxLineage:
		return "more than 64 holds in the lineage"
	}
	return checkName(c.Name)
}

// details copies what would alias the entry.
func (c *Acquire) details() *details {
	if c.Label == "" && len(c.Value) == 0 && len(c.Lineage) == 0 && c.LockDelay == 0 && c.Score == 0 {
		return nil
	}
	return &details{label: c.Label, value: cloned(c.Value), lineage: c.Lineage, lockDelay: c.LockDelay, score: c.Score}
}

// named returns the record of a name and makes one for a name never seen.
func (l *locks) named(space Space, name string) *lock {
	k := l.lookup(space, name)
	if k == nil {
		k = &lock{name: name, space: space}
		if l.byName[space-1] == nil {
			l.byName[space-1] = map[string]*lock{}
		}
		l.byName[space-1][name] = k
	}
	return k
}

func (l *locks) lookup(space Space, name string) *lock {
	if space != SpaceLock && space != SpaceElection {
		return nil
	}
	return l.byName[space-1][name]
}

// join puts r in line, behind all that are not of a lower score, and returns its place.
func (k *lock) join(r *request) uint64 {
	place, behind := k.waiting+1, k.tail
	for behind != nil && behind.detail().score < r.detail().score {
		behind = behind.prev
		place--
	}
	r.prev = behind
	if behind == nil {
		r.next, k.first = k.first, r
	} else {
		r.next, behind.next = behind.next, r
	}
	if r.next == nil {
		k.tail = r
	} else {
		r.next.prev = r
	}
	k.waiting++
	return place
}

// leave takes r out of the line.
func (k *lock) leave(r *request) {
	if r.prev == nil {
		k.first = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		k.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.prev, r.next = nil, nil
	k.waiting--
}

// grantable reports whether whoever asks now is granted at once.
func (k *lock) grantable() bool {
	return k.holder == nil && k.first == nil && k.freeAt == 0
}

// grant gives a free lock to the first in line. It is the only place where a lock
// changes hands, so L1 and L2 are kept here or nowhere. A session that is overdue
// but open is granted as any other: it looks at its own deadline (protocol 23).
// asking is the request that has the answer of this command for its news, if any.
func (k *lock) grant(a *apply, asking *request) {
	if k.holder != nil || k.first == nil || k.freeAt != 0 {
		return
	}
	r := k.first
	k.leave(r)
	k.holder = r
	k.last = Token(a.m.follow(uint64(k.last)))
	r.token, r.since = k.last, a.wall
	if r != asking {
		a.m.locks.unhang(r)
		r.session.grants++
		a.tell(Event{Kind: EventGranted, Session: r.session.id, Seq: r.seq, Token: r.token, Name: k.name})
	}
	if r.more != nil {
		r.more.lineage = nil // only a wait is searched for what it hangs under
	}
	k.observed(a)
}

// vacate takes the holder's hold away and hands over. wait keeps the name taken
// for that long first.
func (k *lock) vacate(a *apply, wait uint64) {
	k.holder = nil
	if wait > 0 {
		k.freeAt = later(a.clock, wait)
		a.m.locks.delays.push(delay{k.freeAt, k})
	}
	if k.grant(a, nil); k.holder == nil {
		k.observed(a)
	}
}

// due ends the delays that have run out.
func (l *locks) due(a *apply) {
	for len(l.delays) > 0 && l.delays[0].at <= a.clock {
		k := l.delays.remove(0).lock
		k.freeAt = 0
		k.grant(a, nil)
	}
}

func (l *locks) next() (uint64, bool) {
	if len(l.delays) == 0 {
		return 0, false
	}
	return l.delays[0].at, true
}

// observed tells those who watch an election how it stands.
func (k *lock) observed(a *apply) Rev {
	if k.space != SpaceElection {
		return 0
	}
	info := LeaderInfo{Epoch: k.last, Vacant: k.holder == nil}
	if r := k.holder; r != nil {
		info.Node, info.Value = r.session.opening.node, r.detail().value
	}
	return a.change(Event{Kind: EventLeader, Name: k.name, Token: k.last, Last: true, Body: Encode(&info)})
}

// request finds what Acquire seq of s became, if it still holds or waits.
func (s *session) request(space Space, name string, seq uint64) *request {
	if r := s.requests[seq]; r != nil && r.lock.space == space && r.lock.name == name {
		return r
	}
	return nil
}

// holds reports whether a hold is current: the check of guards, in the same apply
// as the write that they guard (P5).
func (l *locks) holds(g *Guard) bool {
	s := l.sessions.open(g.Hold.Session)
	if s == nil {
		return false
	}
	r := s.request(g.Space, g.Name, g.Hold.Seq)
	return r != nil && r.held() && r.token == g.Token
}

// cancel ends a wait whose caller does not wait any more. Whatever the order in
// which it and copies of its target arrive, the target does not hold or wait
// afterwards (protocol 11). OK with a token: the target had been granted and is
// released now. Cancelled: it never held. NotFound: it had ended before.
func (l *locks) cancel(a *apply, s *session, c *CancelWait) Result {
	if c.Target == 0 {
		return invalid("cancel: the target is no sequence")
	}
	r := s.request(c.Space, c.Name, c.Target)
	if r == nil {
		return l.cancelUnseen(s, c)
	}
	if r.held() {
		l.release(a, s, &Release{c.Space, c.Name, c.Target, r.token})
		return Result{Token: r.token}
	}
	l.drop(r)
	s.window.replace(c.Target, Result{Code: Cancelled})
	return Result{Code: Cancelled}
}

// cancelUnseen makes every copy of the target that is still to come find itself cancelled.
func (l *locks) cancelUnseen(s *session, c *CancelWait) Result {
	if s.requests[c.Target] != nil {
		return invalid("cancel: the target is for another name")
	}
	if r, seen := s.window.seen(c.Target); seen {
		if r.Code == Cancelled {
			return r
		}
		return Result{Code: NotFound}
	}
	if uint64(len(s.window.answers)) >= 2*l.sessions.limit.Outstanding {
		return Result{Code: WindowFull, N: l.sessions.limit.Outstanding}
	}
	s.window.remember(c.Target, Result{Code: Cancelled})
	return Result{Code: Cancelled}
}

// drop takes a wait out of its line.
func (l *locks) drop(r *request) {
	l.unhang(r)
	r.lock.leave(r)
	delete(r.session.requests, r.seq)
}

// release frees a hold. The name goes to the next in line in the same entry.
func (l *locks) release(a *apply, s *session, c *Release) Result {
	r := s.request(c.Space, c.Name, c.Target)
	if r == nil || !r.held() {
		return Result{Code: NotFound}
	}
	if r.token != c.Token {
		return Result{Code: StaleToken}
	}
	delete(s.requests, r.seq)
	r.lock.vacate(a, 0)
	return Result{Token: r.token}
}

// announce changes what a leader says of itself.
func (l *locks) announce(a *apply, s *session, c *Announce) Result {
	if len(c.Value) > maxValue {
		return invalid("announce: value is larger than 64 KiB")
	}
	r := s.request(SpaceElection, c.Name, c.Target)
	if r == nil || !r.held() || r.token != c.Token {
		return Result{Code: StaleToken}
	}
	if r.more == nil {
		r.more = &details{}
	}
	r.more.value = cloned(c.Value)
	return Result{Token: r.token, Rev: r.lock.observed(a)}
}

// ended takes a session out of all lines first, so that none of its own waits is
// granted what its holds leave.
func (l *locks) ended(a *apply, id SessionID, crashed bool) {
	s := l.sessions.byID[id]
	seqs := sortedKeys(s.requests)
	for _, seq := range seqs {
		if r := s.requests[seq]; !r.held() {
			l.drop(r)
		}
	}
	for _, seq := range seqs {
		r := s.requests[seq]
		if r == nil {
			continue
		}
		delete(s.requests, seq)
		var delay uint64
		if crashed {
			delay = r.detail().lockDelay
		}
		r.lock.vacate(a, delay)
	}
}
