package sim

import "math"

// faults breaks things at random and mends them again. Each seed has a few kinds of
// faults and not the others, so that each kind is also seen alone.
type faults struct {
	w      *world
	ttl    uint64 // of all sessions
	stalls int    // one turn of a loop in so many is interrupted
	pause  uint64 // between two strikes, up to
	kinds  []func()
}

func newFaults(w *world) faults {
	f := faults{w: w, ttl: []uint64{600 * millisecond, second, 2 * second}[w.rnd.IntN(3)], stalls: 1 << 30, pause: w.between(200*millisecond, 1500*millisecond)}
	if w.chance(2) || w.cfg.narrow {
		f.stalls = 20 + w.rnd.IntN(300)
	}
	clients := []func(){w.faults.silenceClient, w.faults.silenceClient, w.faults.lagClient, w.faults.lagClient, w.faults.freezeClient}
	if w.chance(3) || w.cfg.narrow { // nothing but clients in trouble: their sessions end without an election between
		f.kinds, f.pause = clients, f.ttl
		return f
	}
	nodes := []func(){
		w.faults.crash, w.faults.tear, w.faults.blackout, w.faults.blackout, w.faults.freeze, w.faults.cut, w.faults.split,
		w.faults.oneWay, w.faults.slowDisk, w.faults.transfer, w.faults.save,
	}
	for _, kind := range append(nodes, clients...) {
		if w.chance(2) {
			f.kinds = append(f.kinds, kind)
		}
	}
	return f
}

// strike breaks something and comes again.
func (f *faults) strike() {
	w := f.w
	if w.calm {
		return
	}
	if len(f.kinds) > 0 {
		f.kinds[w.rnd.IntN(len(f.kinds))]()
	}
	w.after(w.upTo(f.pause), f.strike)
}

func (f *faults) node() *node { return f.w.nodes[f.w.rnd.IntN(len(f.w.nodes))] }

// leader prefers a node that leads, because that is where faults hurt.
func (f *faults) leader() *node {
	for _, n := range f.w.nodes {
		if n.up() && n.rep.Serving() && !f.w.chance(3) {
			return n
		}
	}
	return f.node()
}

// down ends a node's process, with or without its power, and starts it again later.
func (f *faults) down(n *node, power bool) {
	if !n.up() {
		return
	}
	f.w.stats.Crashes++
	if power {
		n.lose()
	} else {
		n.kill()
	}
	f.w.after(f.w.upTo(1500*millisecond), n.start)
}

func (f *faults) crash() { f.down(f.leader(), f.w.chance(2)) }

// tear takes the power away in the middle of one of the next operations of a disk.
func (f *faults) tear() {
	if n := f.leader(); n.up() {
		n.disk.HaltAt(n.disk.Count() + 1 + f.w.upTo(4))
	}
}

// blackout takes the power from all nodes at once.
func (f *faults) blackout() {
	for _, n := range f.w.nodes {
		f.down(n, true)
	}
}

func (f *faults) freeze() {
	n := f.leader()
	if !n.up() || n.frozen {
		return
	}
	f.w.stats.Pauses++
	f.w.note("freeze", n.at, 0, 0)
	n.frozen = true
	p := n.process
	f.w.after(f.w.upTo(1500*millisecond), func() {
		if n.process == p {
			n.resume()
		}
	})
}

func (n *node) resume() {
	if !n.frozen {
		return
	}
	n.w.note("resume", n.at, 0, 0)
	n.frozen = false
	late := n.thaw
	n.thaw = nil
	for _, act := range late {
		act()
	}
}

func (f *faults) mend(after uint64) {
	f.w.after(after, func() { f.w.net.heal(false) })
}

func (f *faults) cut() {
	n := f.leader()
	f.w.stats.Cuts++
	f.w.note("cut", n.at, 0, 0)
	f.w.net.isolate(n.at, true)
	f.mend(f.w.upTo(2 * second))
}

func (f *faults) split() {
	side := make([]bool, len(f.w.net.links))
	for i := range side {
		side[i] = f.w.chance(2)
	}
	f.w.stats.Cuts++
	f.w.note("split", 0, 0, 0)
	f.w.net.split(side)
	f.mend(f.w.upTo(2 * second))
}

func (f *faults) oneWay() {
	from, to := f.leader(), f.node()
	if from == to {
		return
	}
	f.w.stats.Cuts++
	f.w.note("one way", from.at, to.id, 0)
	if f.w.chance(2) {
		from, to = to, from
	}
	f.w.net.block(from.at, to.at, true)
	f.mend(f.w.upTo(2 * second))
}

func (f *faults) slowDisk() {
	n := f.leader()
	n.slow = f.w.between(5*millisecond, 400*millisecond)
	f.w.after(f.w.upTo(2*second), func() { n.slow = 2 * millisecond })
}

func (f *faults) transfer() {
	if n := f.leader(); n.up() && !n.frozen {
		n.rep.Transfer(f.node().id)
		n.wake()
	}
}

func (f *faults) save() {
	if n := f.node(); n.up() && !n.frozen {
		n.save()
	}
}

// holder prefers a client that has something to lose.
func (f *faults) holder() *client {
	for _, c := range f.w.clients {
		if len(c.session.holds)+len(c.session.jobs) > 0 && c.valid() && f.w.chance(2) {
			return c
		}
	}
	return f.w.clients[f.w.rnd.IntN(len(f.w.clients))]
}

// silenceClient cuts a client off for about as long as its session lives, or only
// what it says: then late answers to its last renewals still arrive.
func (f *faults) silenceClient() { f.silence(f.holder()) }

func (f *faults) silence(c *client) {
	if f.w.calm {
		return
	}
	f.w.note("silence", c.at, 0, 0)
	if f.w.chance(2) {
		f.w.net.isolate(c.at, true)
	} else {
		f.w.net.mute(c.at, true)
	}
	f.w.after(f.w.upTo(3*f.ttl), func() { f.w.net.isolate(c.at, false) })
}

// lagClient gives a client a long way to the nodes, or only back from them, and at
// the end perhaps none.
func (f *faults) lagClient() {
	c := f.holder()
	f.w.note("lag", c.at, 0, 0)
	to, from := f.w.between(20*millisecond, f.ttl/3), f.w.between(20*millisecond, f.ttl/3)
	if f.w.chance(2) {
		to, from = f.w.between(f.ttl/4, f.ttl), usualDelay
	}
	f.w.net.lag(c.at, to, from)
	f.w.after(f.w.upTo(2*f.ttl), func() {
		if f.w.chance(2) {
			f.silence(c)
		}
		f.w.after(f.ttl, func() { f.w.net.lag(c.at, usualDelay, usualDelay) })
	})
}

func (f *faults) freezeClient() {
	c := f.holder()
	if c.frozen {
		return
	}
	f.w.stats.Pauses++
	f.w.note("freeze", c.at, 0, 0)
	c.frozen = true
	f.w.after(f.w.upTo(2*f.ttl), c.resume)
}

func (c *client) resume() {
	c.frozen = false
	late := c.thaw
	c.thaw = nil
	for _, act := range late {
		act()
	}
}

// heal mends all that is broken, at once.
func (f *faults) heal() {
	f.w.note("heal", 0, 0, 0)
	f.w.net.heal(true)
	for _, n := range f.w.nodes {
		n.slow = 2 * millisecond
		n.disk.HaltAt(math.MaxUint64)
		n.resume()
		if !n.up() && n.genesis != nil {
			n.start()
		}
	}
	for _, c := range f.w.clients {
		c.resume()
	}
}
