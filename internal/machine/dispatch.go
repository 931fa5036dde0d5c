package machine

// command carries out one encoded command and fills its answer in.
func (m *Machine) command(a *apply, raw []byte, answer *Answer) {
	var c Cmd
	k := coder{b: raw, reading: true}
	c.fields(&k)
	answer.Session, answer.Seq = c.Session, c.Seq
	if k.err != nil {
		answer.Result = invalid(k.err.Error())
		return
	}
	a.seq = c.Seq
	answer.Result = m.once(a, &c)
}

// once lets a command of a session through if no copy of it was applied (L4).
func (m *Machine) once(a *apply, c *Cmd) Result {
	in := &coder{b: c.Body, reading: true}
	if r, done := m.sessionless(a, c, in); done {
		return r
	}
	s := m.sessions.open(c.Session)
	switch {
	case s == nil && c.Session == 0:
		return invalid("a write needs a session")
	case s == nil:
		return Result{Code: NoSession}
	case c.Seq == 0:
		return invalid("a write needs a sequence")
	}
	s.window.acknowledge(c.Floor, c.Done, m.sessions.limit.Outstanding)
	if r, seen := s.window.seen(c.Seq); seen {
		return r
	}
	full := s.window.full(&m.sessions.limit)
	if full && c.Op != OpRelease && c.Op != OpCancelWait && c.Op != OpCloseSession {
		s.window.forget(c.Seq) // the sender is told that nothing happened: no copy may happen after that
		return Result{Code: WindowFull, N: m.sessions.limit.Outstanding}
	}
	r := m.execute(a, s, c.Op, in)
	if !full { // those that bypass the window name what they end: a copy finds it gone
		s.window.remember(c.Seq, r)
	}
	return r
}

// sessionless carries out the commands that need no sequence: their copies do no harm.
func (m *Machine) sessionless(a *apply, c *Cmd, in *coder) (r Result, done bool) {
	switch c.Op {
	case OpTick:
	case OpOpenSession:
		var c OpenSession
		if c.fields(in); in.err == nil {
			r = m.sessions.begin(a, &c)
		}
	case OpKeepAlive:
		var c KeepAlive
		if c.fields(in); in.err == nil {
			r = m.sessions.renew(a, &c)
		}
	case OpExpire:
		var c Expire
		if c.fields(in); in.err == nil {
			r = m.sessions.expire(a, &c)
		}
	default:
		return r, false
	}
	if in.err != nil {
		r = invalid(in.err.Error())
	}
	return r, true
}

// execute carries out a command of an open session.
func (m *Machine) execute(a *apply, s *session, op Op, in *coder) (r Result) {
	switch {
	case op == OpCloseSession:
		m.sessions.end(a, s, false)
	case op >= OpAcquire && op <= OpAnnounce:
		r = m.executeLock(a, s, op, in)
	case op >= OpTxn && op <= OpIDBlock:
		r = m.executeStore(a, s, op, in)
	case op >= OpQueue && op <= OpCancelTask:
		r = m.executeTasks(a, s, op, in)
	default:
		r.Code = Unknown
	}
	if in.err != nil {
		return invalid(in.err.Error())
	}
	return r
}

func (m *Machine) executeLock(a *apply, s *session, op Op, in *coder) (r Result) {
	switch op {
	case OpAcquire:
		var c Acquire
		if c.fields(in); in.err == nil {
			r = m.locks.acquire(a, s, &c)
		}
	case OpCancelWait:
		var c CancelWait
		if c.fields(in); in.err == nil {
			r = m.locks.cancel(a, s, &c)
		}
	case OpRelease:
		var c Release
		if c.fields(in); in.err == nil {
			r = m.locks.release(a, s, &c)
		}
	case OpAnnounce:
		var c Announce
		if c.fields(in); in.err == nil {
			r = m.locks.announce(a, s, &c)
		}
	}
	return r
}

func (m *Machine) executeStore(a *apply, s *session, op Op, in *coder) (r Result) {
	switch op {
	case OpTxn:
		var c Txn
		if c.fields(in); in.err == nil {
			r = m.keys.txn(a, s, &c)
		}
	case OpCompact:
		var c Compact
		if c.fields(in); in.err == nil {
			r = m.history.compact(a, &c)
		}
	case OpAdd:
		var c Add
		if c.fields(in); in.err == nil {
			r = m.counters.add(a, s, &c)
		}
	case OpSwapCounter:
		var c SwapCounter
		if c.fields(in); in.err == nil {
			r = m.counters.swap(a, s, &c)
		}
	case OpIDBlock:
		var c IDBlock
		if c.fields(in); in.err == nil {
			r = m.counters.block(a, s, &c)
		}
	default:
		r.Code = Unknown
	}
	return r
}

func (m *Machine) executeTasks(a *apply, s *session, op Op, in *coder) (r Result) {
	switch op {
	case OpQueue:
		var c QueueSettings
		if c.fields(in); in.err == nil {
			r = m.tasks.set(a, s, &c)
		}
	case OpSubmit:
		var c Submit
		if c.fields(in); in.err == nil {
			r = m.tasks.submit(a, s, &c)
		}
	case OpWant:
		var c Want
		if c.fields(in); in.err == nil {
			r = m.tasks.wish(a, s, &c)
		}
	case OpFinish:
		var c Finish
		if c.fields(in); in.err == nil {
			r = m.tasks.finish(a, s, &c)
		}
	case OpCancelTask:
		var c CancelTask
		if c.fields(in); in.err == nil {
			r = m.tasks.cancel(a, s, &c)
		}
	}
	return r
}

// Query reads the state as of [Machine.Applied].
func (m *Machine) Query(q *Query) Result {
	switch q.Kind {
	case QueryLock:
		r := m.locks.query(q)
		r.Rev = m.rev // where to watch on from
		return r
	case QueryWait:
		return m.locks.queryWait(q)
	case QuerySession:
		return m.sessions.query(q)
	case QueryKey, QueryScan:
		return m.keys.query(q, m.rev)
	case QueryCounter:
		return m.counters.query(q)
	case QueryTask, QueryStats, QueryClaims:
		return m.tasks.query(q)
	case QueryHistory:
		return m.history.query(q, m.rev)
	}
	return Result{Code: Unknown}
}
