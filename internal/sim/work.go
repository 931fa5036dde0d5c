package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/clatter-go/clatter/internal/machine"
)

const queueName = "q"

// hold is a lock that the client asked for, and has once there is a token.
type hold struct {
	name   string
	seq    uint64
	token  machine.Token
	ending bool // a cancel or release is on its way: nothing is believed any more
}

// job is a task that the client works on.
type job struct {
	id    machine.TaskID
	claim machine.Token
}

// believes reports whether the client takes itself for the holder of a lock.
func (c *client) believes(name string) *hold {
	h := c.session.holds[name]
	if h == nil || h.token == 0 || h.ending || !c.valid() {
		return nil
	}
	return h
}

// works reports under which claim the client takes a task for its own.
func (c *client) works(id machine.TaskID) machine.Token {
	if j := c.session.jobs[id]; j != nil && c.valid() {
		return j.claim
	}
	return 0
}

func lockName(i int) string { return [...]string{"l0", "l1", "l2"}[i] }

// act begins a piece of work now and then.
func (c *client) act() {
	if c.valid() && !c.w.calm && c.pending < 3 {
		switch c.w.rnd.IntN(10) {
		case 0, 1, 2, 3:
			c.acquire(lockName(c.w.rnd.IntN(3)))
		case 4, 5:
			c.swap(fmt.Sprint("k", c.w.rnd.IntN(2)))
		case 6:
			c.add()
		case 7:
			c.total()
		case 8:
			c.submit()
			c.haunt()
		case 9:
			c.look(lockName(c.w.rnd.IntN(3)))
		}
	}
	if c.valid() {
		c.want()
	}
	c.wait(c.w.between(c.w.pace/8, c.w.pace), c.act)
}

// busy names something that the client has not ended yet.
func (c *client) busy() string {
	for _, id := range c.callIDs() {
		if k := c.calls[id]; !k.once {
			return fmt.Sprintf("call %x, tried %d times", id, k.attempt)
		}
	}
	if n := len(c.session.holds); n > 0 {
		return fmt.Sprint(n, " locks")
	}
	if n := len(c.session.jobs); n > 0 {
		return fmt.Sprint(n, " tasks")
	}
	return ""
}

func (c *client) acquire(name string) {
	if c.session.holds[name] != nil {
		return
	}
	h := &hold{name: name}
	c.session.holds[name] = h
	m := &machine.Acquire{Space: machine.SpaceLock, Name: name, Try: c.w.chance(4)}
	if c.w.chance(8) {
		m.LockDelay = c.w.upTo(300 * millisecond)
	}
	h.seq = c.do(machine.OpAcquire, m, func(r machine.Result) {
		switch r.Code {
		case machine.OK:
			c.granted(h, r.Token)
		case machine.Queued:
			c.wait(c.w.between(50*millisecond, 4*c.w.faults.ttl), func() { c.cancel(h) })
			c.wait(300*millisecond, func() { c.poll(h) })
		default:
			c.drop(h)
		}
	})
}

func (c *client) drop(h *hold) {
	if c.session.holds[h.name] == h {
		delete(c.session.holds, h.name)
	}
}

// granted begins the belief, and plans its end.
func (c *client) granted(h *hold, token machine.Token) {
	if c.session.holds[h.name] != h || h.token != 0 || h.ending {
		return
	}
	h.token = token
	c.w.stats.Grants++
	c.w.note("holds", c.at, h.seq, uint64(token))
	c.wait(c.w.between(5*millisecond, []uint64{50 * millisecond, 3 * c.w.faults.ttl}[c.w.rnd.IntN(2)]), func() { c.release(h) })
}

// release ends the belief before anything is sent (protocol 12).
func (c *client) release(h *hold) {
	if c.session.holds[h.name] != h || h.ending {
		return
	}
	h.ending = !c.w.cfg.mutant.is(believeUntilReleased)
	m := &machine.Release{Space: machine.SpaceLock, Name: h.name, Target: h.seq, Token: h.token}
	c.do(machine.OpRelease, m, func(r machine.Result) {
		if r.Code != machine.OK {
			c.w.fail("L1: the release of %q by client %d, token %d, is refused: %+v", h.name, c.at, h.token, r)
		}
		c.drop(h)
	})
}

// cancel gives a wait up.
func (c *client) cancel(h *hold) {
	if c.session.holds[h.name] != h || h.token != 0 || h.ending {
		return
	}
	h.ending = true
	m := &machine.CancelWait{Space: machine.SpaceLock, Name: h.name, Target: h.seq}
	c.do(machine.OpCancelWait, m, func(machine.Result) { c.drop(h) })
}

// poll asks how a wait stands, because the notice of a grant may be lost.
func (c *client) poll(h *hold) {
	if c.session.holds[h.name] != h || h.token != 0 || h.ending {
		return
	}
	q := &machine.Query{Kind: machine.QueryWait, Space: machine.SpaceLock, Name: h.name, Session: c.session.id, Seq: h.seq}
	c.ask(q, func(r machine.Result) {
		if r.Code == machine.OK {
			c.granted(h, r.Token)
		}
		c.wait(300*millisecond, func() { c.poll(h) })
	})
}

// look reads a lock as anybody may.
func (c *client) look(name string) {
	least := c.w.check.tokens[name]
	c.ask(&machine.Query{Kind: machine.QueryLock, Space: machine.SpaceLock, Name: name}, func(r machine.Result) {
		var info machine.LockInfo
		if r.Code == machine.OK && machine.Decode(r.Body, &info) != nil || len(info.Holders) > 1 {
			c.w.fail("L1: %q has %d holders", name, len(info.Holders))
		}
		if info.Last < least {
			c.w.fail("P1: client %d reads %q at token %d after %d was given", c.at, name, info.Last, least)
		}
	})
}

// swap reads a key and changes it if nobody else has.
func (c *client) swap(key string) {
	c.pending++
	least := c.w.check.swapped[key]
	c.ask(&machine.Query{Kind: machine.QueryKey, Name: key}, func(r machine.Result) {
		var e machine.KeyEntry
		if r.Code == machine.OK {
			if err := machine.Decode(r.Body, &e); err != nil {
				c.w.fail("client %d: %q: %w", c.at, key, err)
			}
		}
		if e.Rev < least {
			c.w.fail("P1: client %d reads %q at revision %d after %d was acknowledged", c.at, key, e.Rev, least)
		}
		if !c.valid() {
			return
		}
		m := &machine.Txn{Guards: c.guards(), Checks: []machine.Check{{Key: key, Rev: e.Rev}}, Ops: []machine.KeyOp{{Kind: machine.KeyPut, Key: key, Value: fmt.Append(nil, c.at, c.session.seq)}}}
		c.do(machine.OpTxn, m, func(r machine.Result) {
			c.pending--
			switch r.Code {
			case machine.StaleToken:
				c.w.stats.Refused++
			case machine.OK:
				c.w.stats.Swaps++
				c.w.check.swapped[key] = max(c.w.check.swapped[key], r.Rev)
			}
		})
	})
}

func (c *client) guard(h *hold) machine.Guard {
	return machine.Guard{Space: machine.SpaceLock, Name: h.name, Hold: machine.HoldRef{Session: c.session.id, Seq: h.seq}, Token: h.token}
}

// guards returns a hold for a transaction to depend on: a current one, or one that
// was lost, or none.
func (c *client) guards() []machine.Guard {
	if n := len(c.ghosts); n > 0 && c.w.chance(2) {
		return c.ghosts[n-1:]
	}
	for _, name := range slices.Sorted(maps.Keys(c.session.holds)) {
		if h := c.believes(name); h != nil && c.w.chance(2) {
			return []machine.Guard{c.guard(h)}
		}
	}
	return nil
}

// haunt reports the end of a task whose claim was lost with its session.
func (c *client) haunt() {
	if len(c.zombies) == 0 {
		return
	}
	m := &machine.Finish{Queue: queueName, Ends: c.zombies[:1]}
	c.zombies = c.zombies[1:]
	c.do(machine.OpFinish, m, func(machine.Result) {})
}

func (c *client) add() {
	c.pending++
	c.w.check.issued++
	c.do(machine.OpAdd, &machine.Add{Name: "n", Delta: 1}, func(r machine.Result) {
		c.pending--
		c.w.check.counted = max(c.w.check.counted, r.N)
	})
}

// total reads the counter.
func (c *client) total() {
	least := c.w.check.counted
	c.ask(&machine.Query{Kind: machine.QueryCounter, Name: "n"}, func(r machine.Result) {
		if r.N < least || r.N > c.w.check.issued {
			c.w.fail("P1: client %d reads the counter as %d: %d was acknowledged before, %d were begun", c.at, r.N, least, c.w.check.issued)
		}
	})
}

func (c *client) submit() {
	c.pending++
	tasks := make([]machine.TaskSpec, 1+c.w.rnd.IntN(3))
	for i := range tasks {
		tasks[i].Payload = []byte{byte(i)}
		if c.w.chance(4) {
			tasks[i].Delay = c.w.upTo(second)
		}
		if c.w.chance(4) {
			tasks[i].OrderKey = "o"
		}
	}
	c.do(machine.OpSubmit, &machine.Submit{Queue: queueName, Tasks: tasks}, func(r machine.Result) {
		c.pending--
		c.w.stats.Submitted++
	})
}

// want asks for tasks if there are none to do.
func (c *client) want() {
	if c.session.wanted || len(c.session.jobs) > 0 || c.at%2 == 0 && !c.w.calm {
		return
	}
	c.session.wanted = true
	c.do(machine.OpWant, &machine.Want{Queue: queueName, N: 1 + c.w.rnd.Uint64N(3)}, func(machine.Result) {})
}

// notice takes an event of the session, now or when the client thaws.
func (c *client) notice(e *machine.Event) {
	c.later(0, func() {
		if e.Session != c.session.id {
			return
		}
		switch e.Kind {
		case machine.EventGranted:
			if h := c.session.holds[e.Name]; h != nil && h.seq == e.Seq {
				c.granted(h, e.Token)
			}
		case machine.EventAssigned:
			var a machine.Assignment
			if err := machine.Decode(e.Body, &a); err != nil {
				c.w.fail("client %d: an assignment: %w", c.at, err)
				return
			}
			c.session.assigned += c.assigned(&a)
		}
	})
}

// askClaims finds the assignments whose notices were lost.
func (c *client) askClaims() {
	s := c.session.id
	c.ask(&machine.Query{Kind: machine.QueryClaims, Session: s, Name: queueName}, func(r machine.Result) {
		var a machine.Assignment
		if r.Code != machine.OK || machine.Decode(r.Body, &a) != nil || c.session.id != s {
			return
		}
		c.assigned(&a)
		c.session.assigned = max(c.session.assigned, a.Total)
	})
}

// assigned begins the tasks that are news, and counts them.
func (c *client) assigned(a *machine.Assignment) (news uint64) {
	if a.Total >= c.session.newest { // an older notice that came late says nothing about now
		c.session.newest, c.session.wanted = a.Total, a.Want > 0
	}
	for i := range a.Tasks {
		t := &a.Tasks[i]
		if c.session.seen[t.Claim] {
			continue
		}
		news++
		c.session.seen[t.Claim] = true
		j := &job{t.ID, t.Claim}
		c.session.jobs[t.ID] = j
		c.wait(c.w.between(5*millisecond, 300*millisecond), func() { c.finish(j) })
	}
	return news
}

// finish ends the belief in a claim and reports how it went.
func (c *client) finish(j *job) {
	if c.session.jobs[j.id] != j || !c.valid() {
		return
	}
	if !c.w.cfg.mutant.is(believeUntilReleased) {
		delete(c.session.jobs, j.id)
	}
	how := []machine.TaskEnd{machine.EndDone, machine.EndDone, machine.EndDone, machine.EndRetry, machine.EndRelease}[c.w.rnd.IntN(5)]
	if c.w.calm {
		how = machine.EndDone
	}
	m := &machine.Finish{Queue: queueName, Ends: []machine.End{{ID: j.id, Claim: j.claim, How: how, Delay: c.w.upTo(200 * millisecond)}}}
	c.do(machine.OpFinish, m, func(r machine.Result) {
		var a machine.FinishAnswer
		if r.Code != machine.OK || machine.Decode(r.Body, &a) != nil || slices.Contains(a.Refused, 0) {
			c.w.fail("T1: client %d ends task %d under its claim %d and is refused: %+v", c.at, j.id, j.claim, r)
		}
		if c.session.jobs[j.id] == j {
			delete(c.session.jobs, j.id)
		}
	})
}
