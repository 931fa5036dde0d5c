package sim

// network connects nodes and clients by their places: 0 to n-1 are nodes. Nothing
// keeps its order.
type network struct {
	w     *world
	links [][]link
}

const usualDelay = 2 * millisecond

// link is one direction between two places.
type link struct {
	blocked bool
	lost    int // of a thousand messages
	doubled int
	slow    int    // those that take up to delay*50
	delay   uint64 // up to
}

func newNetwork(w *world, places int) network {
	n := network{w: w, links: make([][]link, places)}
	lost, doubled, slow := w.rnd.IntN(60), w.rnd.IntN(40), w.rnd.IntN(30)
	if w.chance(3) {
		lost, doubled, slow = 0, 0, 0
	}
	for i := range n.links {
		n.links[i] = make([]link, places)
		for j := range n.links[i] {
			n.links[i][j] = link{lost: lost, doubled: doubled, slow: slow, delay: usualDelay}
		}
	}
	return n
}

// send delivers a message some time, or not, or twice.
func (n *network) send(from, to int, deliver func()) {
	l := &n.links[from][to]
	if l.blocked || n.w.rnd.IntN(1000) < l.lost {
		return
	}
	copies := 1
	if n.w.rnd.IntN(1000) < l.doubled {
		copies = 2
	}
	for range copies {
		delay := 50*microsecond + n.w.upTo(l.delay)
		if n.w.rnd.IntN(1000) < l.slow {
			delay = n.w.upTo(50 * l.delay)
		}
		n.w.after(delay, func() {
			if !n.links[from][to].blocked { // cut while it was on its way
				deliver()
			}
		})
	}
}

// block cuts or opens one direction.
func (n *network) block(from, to int, blocked bool) { n.links[from][to].blocked = blocked }

// isolate cuts both directions between a place and all others.
func (n *network) isolate(place int, blocked bool) {
	n.mute(place, blocked)
	for other := range n.links {
		if other != place {
			n.block(other, place, blocked)
		}
	}
}

// mute cuts what a place sends, and nothing of what it is sent.
func (n *network) mute(place int, blocked bool) {
	for other := range n.links {
		if other != place {
			n.block(place, other, blocked)
		}
	}
}

// split cuts every link between the two sides.
func (n *network) split(side []bool) {
	for i := range n.links {
		for j := range n.links {
			if side[i] != side[j] {
				n.block(i, j, true)
			}
		}
	}
}

// lag makes everything to a place take up to delay, and what it sends up to back.
func (n *network) lag(place int, delay, back uint64) {
	for other := range n.links {
		n.links[other][place].delay = delay
		n.links[place][other].delay = back
	}
}

// heal opens all links; loss and delay stay as they are unless calm is set.
func (n *network) heal(calm bool) {
	for i := range n.links {
		for j := range n.links[i] {
			n.links[i][j].blocked = false
			if calm {
				n.links[i][j].lost, n.links[i][j].slow, n.links[i][j].delay = 0, 0, usualDelay
			}
		}
	}
}
