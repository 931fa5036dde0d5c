package machine

// tryInfo is how many waiters the answer of a failed Try names; N counts them all.
const tryInfo = 16

// info describes a lock, with at most as many waiters.
func (k *lock) info(waiters uint64) *LockInfo {
	info := &LockInfo{Name: k.name, Last: k.last}
	if k.holder != nil {
		info.Holders = []Owner{k.holder.owner()}
	}
	for r := k.first; r != nil && uint64(len(info.Waiters)) < waiters; r = r.next {
		info.Waiters = append(info.Waiters, r.owner())
	}
	return info
}

func (r *request) owner() Owner {
	d := r.detail()
	return Owner{Node: r.session.opening.node, Label: d.label, Hold: r.ref(), Token: r.token, Since: r.since, Value: d.value}
}

func (l *locks) query(q *Query) Result {
	k := l.lookup(q.Space, q.Name)
	if k == nil {
		return Result{Code: NotFound}
	}
	return Result{Token: k.last, N: k.waiting, Body: Encode(k.info(k.waiting))}
}

// queryWait says what an Acquire has become. It is asked instead of sending the
// Acquire again, whose answer stays Queued for ever (protocol 25).
func (l *locks) queryWait(q *Query) Result {
	s := l.sessions.open(q.Session)
	if s == nil {
		return Result{Code: NoSession}
	}
	r := s.request(q.Space, q.Name, q.Seq)
	switch {
	case r == nil:
		if done, seen := s.window.seen(q.Seq); seen && done.Code == Cancelled {
			return done
		}
		return Result{Code: NotFound}
	case r.held():
		return Result{Token: r.token}
	}
	place := uint64(1)
	for p := r.prev; p != nil; p = p.prev {
		place++
	}
	return Result{Code: Queued, N: place}
}

// fields codes the locks by name, each with its holder and its line.
func (l *locks) fields(k *coder) {
	k.u64(&l.limit.Waiters)
	k.u64(&l.limit.Edges)
	for space := SpaceLock; space <= SpaceElection; space++ {
		names := sortedKeys(l.byName[space-1])
		n := k.count(len(names))
		for i := 0; i < n && k.err == nil; i++ {
			if !k.reading {
				l.byName[space-1][names[i]].write(k)
				continue
			}
			l.read(k, space)
		}
	}
	if k.reading && k.err == nil {
		l.hangAll()
	}
}

// hangAll rebuilds the wait graph once all holds are known.
func (l *locks) hangAll() {
	for _, names := range l.byName {
		for _, name := range sortedKeys(names) {
			for r := names[name].first; r != nil; r = r.next {
				l.hang(r)
			}
		}
	}
}

func (k *lock) write(c *coder) {
	k.header(c)
	if k.holder != nil {
		k.holder.fields(c, nil)
	}
	c.count(int(k.waiting))
	for r := k.first; r != nil; r = r.next {
		r.fields(c, nil)
	}
}

func (k *lock) header(c *coder) {
	held := k.holder != nil
	c.str(&k.name)
	c.u64((*uint64)(&k.last))
	c.u64(&k.freeAt)
	c.flag(&held)
	if held && c.reading {
		k.holder = &request{}
	}
}

// read reads one lock and ties it to the sessions.
func (l *locks) read(c *coder, space Space) {
	var head lock
	head.header(c)
	if c.err != nil || l.lookup(space, head.name) != nil {
		c.fail("lock")
		return
	}
	k := l.named(space, head.name)
	k.last, k.freeAt = head.last, head.freeAt
	if k.freeAt != 0 {
		l.delays.push(delay{k.freeAt, k})
	}
	if head.holder != nil {
		k.holder = l.readRequest(c, k)
	}
	n := c.count(0)
	for i := 0; i < n && c.err == nil; i++ {
		if r := l.readRequest(c, k); r != nil {
			k.join(r)
		}
	}
}

func (l *locks) readRequest(c *coder, k *lock) *request {
	r := &request{lock: k}
	r.fields(c, l)
	if c.err != nil || r.session == nil || r.session.requests[r.seq] != nil {
		c.fail("hold or wait of no session")
		return nil
	}
	if r.session.requests == nil {
		r.session.requests = map[uint64]*request{}
	}
	r.session.requests[r.seq] = r
	return r
}

// fields codes a request; l, needed for reading only, knows the sessions.
func (r *request) fields(c *coder, l *locks) {
	var id SessionID
	d := *r.detail()
	if !c.reading {
		id = r.session.id
	}
	c.u64((*uint64)(&id))
	c.u64(&r.seq)
	c.u64((*uint64)(&r.token))
	c.i64(&r.since)
	c.str(&d.label)
	c.bytes(&d.value)
	list(c, &d.lineage)
	c.u64(&d.lockDelay)
	c.u64(&d.score)
	if !c.reading {
		return
	}
	r.session = l.sessions.open(id)
	a := Acquire{Label: d.label, Value: d.value, Lineage: d.lineage, LockDelay: d.lockDelay, Score: d.score}
	r.more = a.details()
}
