package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/clatter-go/clatter/internal/machine"
)

// client is a node that does not vote: it has a session, a clock of its own and work
// to do. It follows the rules of packages session and consensus.
type client struct {
	w     *world
	at    int
	clock clock
	lead  int // place of the node that it takes for the leader

	calls    map[uint64]*call
	lastCall uint64
	session  session
	nonce    uint64
	renewed  uint64 // local time of the last renewal sent
	opening  bool
	pending  int             // pieces of work under way
	ghosts   []machine.Guard // holds of lost sessions: what a process does not know that was asleep
	zombies  []machine.End   // and tasks

	frozen bool
	thaw   []func()
}

// call is a request until it is answered. All its copies are the same bytes.
type call struct {
	id      uint64
	cmd     []byte
	query   *machine.Query
	session machine.SessionID // it ends with that session
	once    bool              // a renewal is not sent again: the next one is another call
	began   uint64            // local time of the first send
	attempt int
	done    func(machine.Result)
}

// session is what the owner knows of its session.
type session struct {
	id       machine.SessionID
	ttl      uint64
	until    uint64   // local time from which on it believes nothing any more
	seq      uint64   // of the last command
	open     []uint64 // sequences without an answer, ascending
	done     []uint64 // answered ones above the first of open
	assigned uint64   // tasks it has been told of
	newest   uint64   // Assignment.Total of the newest notice
	wanted   bool     // a Want was sent and not used up
	holds    map[string]*hold
	jobs     map[machine.TaskID]*job
	seen     map[machine.Token]bool // claims that it was told of
}

func newClient(w *world, at int) *client {
	return &client{w: w, at: at, clock: w.newClock(), calls: map[uint64]*call{}, lead: w.rnd.IntN(len(w.nodes))}
}

func (c *client) now() uint64 { return c.clock.read(c.w.now) }

// later runs act after a delay of real time, or when the client thaws.
func (c *client) later(delay uint64, act func()) {
	var run func()
	run = func() {
		if c.frozen {
			c.thaw = append(c.thaw, run)
			return
		}
		act()
	}
	c.w.after(delay, run)
}

// wait is later by the client's own clock.
func (c *client) wait(d uint64, act func()) { c.later(c.clock.real(d), act) }

// valid reports whether the session can be relied on at this moment.
func (c *client) valid() bool { return c.session.id != 0 && c.now() < c.session.until }

// begin starts the client's loops.
func (c *client) begin() {
	c.openSession()
	c.beat()
	c.act()
}

func (c *client) openSession() {
	c.opening = true
	c.nonce = c.w.rnd.Uint64()
	ttl := c.w.faults.ttl
	m := &machine.OpenSession{TTL: ttl, Node: fmt.Sprint("c", c.at), Boot: 1, Nonce: c.nonce}
	k := &call{cmd: encode(machine.Cmd{Op: machine.OpOpenSession}, m)}
	k.done = func(r machine.Result) {
		c.opening = false
		c.session = session{id: machine.SessionID(r.N), ttl: ttl, holds: map[string]*hold{}, jobs: map[machine.TaskID]*job{}, seen: map[machine.Token]bool{}}
		c.session.until = c.trusted(k.began)
		c.w.note("session", c.at, r.N, 0)
	}
	c.send(k)
}

// trusted is until when a renewal that was sent at a local time lets the owner
// believe: a tenth shorter than the TTL (S1).
func (c *client) trusted(sent uint64) uint64 {
	switch m := c.w.cfg.mutant; {
	case m.is(beliefFromAnswer):
		sent = c.now()
	case m.is(beliefFromLastSend):
		sent = max(sent, c.renewed)
	}
	return sent + c.session.ttl - c.session.ttl/10
}

// beat renews the session in time, and notices when it was too late.
func (c *client) beat() {
	switch {
	case c.valid():
		c.renew()
	case c.session.id != 0:
		c.lose()
	}
	if c.session.id == 0 && !c.opening {
		c.openSession()
	}
	c.wait(c.w.faults.ttl/5, c.beat)
}

func (c *client) renew() {
	s := c.session.id
	c.renewed = c.now()
	k := &call{once: true, session: s, cmd: encode(machine.Cmd{Op: machine.OpKeepAlive}, &machine.KeepAlive{Sessions: []machine.SessionID{s}})}
	k.done = func(r machine.Result) {
		var a machine.KeepAliveAnswer
		if err := machine.Decode(r.Body, &a); r.Code != machine.OK || err != nil || len(a.States) != 1 {
			c.w.fail("client %d: the answer to a renewal makes no sense: %+v", c.at, r)
			return
		}
		if !c.valid() { // false is final
			return
		}
		if !a.States[0].Open {
			c.lose()
			return
		}
		c.session.until = max(c.session.until, c.trusted(k.began))
		if a.States[0].Assigned > c.session.assigned {
			c.askClaims()
		}
	}
	c.send(k)
}

// lose ends everything that hung on the session. It is never renewed again.
func (c *client) lose() {
	c.w.note("lost", c.at, uint64(c.session.id), 0)
	c.w.stats.Losses++
	for _, id := range c.callIDs() {
		if k := c.calls[id]; k.session != 0 {
			delete(c.calls, id)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.session.holds)) {
		if h := c.session.holds[name]; h.token != 0 {
			c.ghosts = append(c.ghosts, c.guard(h))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.session.jobs)) {
		c.zombies = append(c.zombies, machine.End{ID: id, Claim: c.session.jobs[id].claim, How: machine.EndDone})
	}
	c.pending = 0
	c.session = session{}
}

func (c *client) callIDs() (ids []uint64) {
	for id := range c.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func encode(cmd machine.Cmd, body machine.Message) []byte {
	cmd.Body = machine.Encode(body)
	return machine.Encode(&cmd)
}

// do sends a command of the session until it is answered or the session is lost. It
// returns the sequence.
func (c *client) do(op machine.Op, body machine.Message, done func(machine.Result)) uint64 {
	s := &c.session
	s.seq++
	seq, id := s.seq, s.id
	s.open = append(s.open, seq)
	cmd := machine.Cmd{Session: id, Seq: seq, Floor: s.open[0], Done: slices.Clone(s.done), Op: op}
	k := &call{session: id, cmd: encode(cmd, body)}
	k.done = func(r machine.Result) {
		c.w.check.acknowledged(id, seq, &r)
		s.answered(seq)
		if r.Code == machine.NoSession {
			c.lose()
			return
		}
		done(r)
	}
	c.send(k)
	return seq
}

// answered lets the next command say that the answer to seq is not needed any more.
func (s *session) answered(seq uint64) {
	s.open = slices.DeleteFunc(s.open, func(o uint64) bool { return o == seq })
	s.done = append(s.done, seq)
	floor := s.seq + 1
	if len(s.open) > 0 {
		floor = s.open[0]
	}
	s.done = slices.DeleteFunc(s.done, func(d uint64) bool { return d < floor })
}

// ask sends a query until it is answered, to any node.
func (c *client) ask(q *machine.Query, done func(machine.Result)) {
	c.send(&call{query: q, session: c.session.id, done: done})
}

func (c *client) send(k *call) {
	c.lastCall++
	k.id, k.began = c.lastCall, c.now()
	c.calls[k.id] = k
	c.try(k)
}

// try sends one copy, and another one later if no answer comes.
func (c *client) try(k *call) {
	if c.calls[k.id] != k {
		return
	}
	if k.attempt++; k.attempt > 1 {
		c.w.stats.Retries++
		c.w.cfg.mutant.renumber(c, k)
	}
	attempt, to := k.attempt, c.lead
	if k.query != nil {
		to = c.w.rnd.IntN(len(c.w.nodes))
	}
	n := c.w.nodes[to]
	c.w.net.send(c.at, n.at, func() { n.ask(request{client: c, call: k.id, cmd: k.cmd, query: k.query}) })
	c.later(c.w.between(150*millisecond, 400*millisecond), func() {
		if c.calls[k.id] != k || k.attempt != attempt {
			return
		}
		if k.once {
			delete(c.calls, k.id)
			return
		}
		c.lead = c.w.rnd.IntN(len(c.w.nodes))
		c.try(k)
	})
}

// hear takes an answer, now or when the client thaws.
func (c *client) hear(r reply) {
	c.later(0, func() { c.settle(r) })
}

func (c *client) settle(r reply) {
	k := c.calls[r.call]
	switch {
	case k == nil:
	case r.verdict == answered:
		delete(c.calls, k.id)
		c.w.stats.Answers++
		k.done(r.result)
	case r.verdict == notTaken && r.lead != 0:
		c.lead = int(r.lead - 1)
		c.later(c.w.between(10*millisecond, 40*millisecond), func() { c.try(k) })
	default:
		c.lead = c.w.rnd.IntN(len(c.w.nodes))
		c.later(c.w.between(20*millisecond, 80*millisecond), func() { c.try(k) })
	}
}
