package membership

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Bounds of what is kept of members that are gone: the failed ones, to call on them,
// and those that left, because word of an older boot may still be on its way.
const (
	keepGone = 24 * time.Hour
	maxGone  = 256
)

// roster turns what gossip says of name#boot into the story of names. It is a pure
// step function: sights and the time in, events out. M1 is kept here: add and drop
// are the only places where a member comes or goes, and each asks which it is.
type roster struct {
	self    string
	boot    uint64
	members map[string]*entry
	ghosts  map[incarnation]time.Time // boots other than the shown one that gossip holds alive, since when
	twins   map[incarnation]bool      // incarnations that were told as conflicts; bounded by what gossip holds alive
}

// entry is one name.
type entry struct {
	name  string
	boot  uint64
	addr  netip.AddrPort
	meta  meta
	state State
	since time.Time
	tried time.Time // last attempt to find it again, while failed
}

// incarnation is one start of a node.
type incarnation struct {
	name string
	boot uint64
}

// sight is one word of gossip: an incarnation is up, or no longer.
type sight struct {
	incarnation
	up   bool
	addr netip.AddrPort
	meta meta
}

func newRoster(self string, boot uint64, addr netip.AddrPort, m meta, now time.Time) *roster {
	r := &roster{
		self:    self,
		boot:    boot,
		members: map[string]*entry{},
		ghosts:  map[incarnation]time.Time{},
		twins:   map[incarnation]bool{},
	}
	r.members[self] = &entry{name: self, boot: boot, addr: addr, meta: m, state: StateAlive, since: now}
	return r
}

// apply takes one word of gossip; it returns what watchers are to be told.
func (r *roster) apply(s sight, now time.Time) []Event {
	e := r.members[s.name]
	switch {
	case s.name == r.self && s.boot != r.boot:
		return r.namesake(s, now)
	case e == nil || s.boot > e.boot:
		return r.add(s, now)
	case s.boot < e.boot:
		r.haunt(s, now)
		return nil
	case !s.up:
		return r.drop(s, now)
	case e.state == StateLeft:
		return nil // gossip that has not heard of the farewell; nobody comes back under one boot
	case e.state == StateFailed:
		return r.add(s, now)
	}
	return r.update(e, s, now)
}

// add shows the incarnation s: as new, or in place of an older boot that is still in
// sight, which becomes a ghost until gossip misses it.
func (r *roster) add(s sight, now time.Time) []Event {
	if !s.up {
		return nil // it was never shown
	}
	kind := Joined
	if old := r.members[s.name]; old != nil && old.state.present() {
		kind = Restarted
		r.haunt(sight{incarnation: incarnation{old.name, old.boot}, up: true}, now)
	}
	r.forgetGhost(s.incarnation)
	e := &entry{name: s.name, boot: s.boot, addr: s.addr, meta: s.meta, state: stateOf(s.meta), since: now}
	r.members[s.name] = e
	return []Event{{kind, e.member()}}
}

// update takes news of a member in sight. Who has said farewell does not take it back:
// older news may come in later.
func (r *roster) update(e *entry, s sight, now time.Time) (events []Event) {
	before, old := e.member(), e.state
	s.meta.leaving = s.meta.leaving || e.meta.leaving
	e.addr, e.meta = s.addr, s.meta
	if e.state = stateOf(s.meta); e.state != old {
		e.since = now
	}
	if !alike(before, e.member()) {
		events = append(events, Event{Updated, e.member()})
	}
	if old == StateAlive && e.state == StateLeaving {
		events = append(events, Event{Leaving, e.member()})
	}
	return events
}

// farewell takes word of a member that it is about to leave.
func (r *roster) farewell(i incarnation, now time.Time) []Event {
	e := r.members[i.name]
	if e == nil || e.boot != i.boot || !e.state.present() {
		return nil
	}
	s := sight{incarnation: i, up: true, addr: e.addr, meta: e.meta}
	s.meta.leaving = true
	return r.update(e, s, now)
}

// drop ends the presence of a member. Its last meta tells a farewell from a failure.
func (r *roster) drop(s sight, now time.Time) []Event {
	e := r.members[s.name]
	if !e.state.present() || e.name == r.self {
		return nil
	}
	kind := Failed
	e.state = StateFailed
	if e.meta.leaving || s.meta.leaving {
		kind, e.state = Left, StateLeft
	}
	e.since, e.tried = now, now
	delete(r.twins, s.incarnation)
	ev := Event{kind, e.member()}
	r.forget(now)
	return []Event{ev}
}

// haunt notes that gossip holds another boot of a known name alive, or no longer.
func (r *roster) haunt(s sight, now time.Time) {
	if _, known := r.ghosts[s.incarnation]; s.up && !known {
		r.ghosts[s.incarnation] = now
	} else if !s.up {
		r.forgetGhost(s.incarnation)
	}
}

func (r *roster) forgetGhost(i incarnation) {
	delete(r.ghosts, i)
	delete(r.twins, i)
}

// namesake takes word of another node under our own name. A smaller boot may be our
// own past; a larger one is another process, since we are the latest start of ours.
func (r *roster) namesake(s sight, now time.Time) []Event {
	r.haunt(s, now)
	if !s.up || s.boot < r.boot {
		return nil
	}
	return r.clash(s, now)
}

// clash takes word of a second node with the very name and boot of another.
func (r *roster) clash(s sight, now time.Time) []Event {
	if r.twins[s.incarnation] {
		return nil
	}
	r.twins[s.incarnation] = true
	e := entry{name: s.name, boot: s.boot, addr: s.addr, meta: s.meta, state: stateOf(s.meta), since: now}
	return []Event{{Conflict, e.member()}}
}

// conflicts tells of older boots that are still alive after the time in which a dead
// one is surely missed: each is a process of its own under a copied name.
func (r *roster) conflicts(now time.Time, missed time.Duration) (events []Event) {
	for ghost, since := range r.ghosts {
		if r.twins[ghost] || now.Sub(since) < missed {
			continue
		}
		r.twins[ghost] = true
		events = append(events, Event{Conflict, Member{Name: ghost.name, Boot: ghost.boot, State: StateAlive, Since: since}})
	}
	slices.SortFunc(events, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Member.Name, b.Member.Name), cmp.Compare(a.Member.Boot, b.Member.Boot))
	})
	return events
}

// forget lets go of members that have been gone for keepGone, and of the oldest
// beyond maxGone, those that left first.
func (r *roster) forget(now time.Time) {
	var gone []*entry
	for _, e := range r.members {
		if !e.state.present() {
			gone = append(gone, e)
		}
	}
	slices.SortFunc(gone, func(a, b *entry) int {
		return cmp.Or(-cmp.Compare(a.state, b.state), a.since.Compare(b.since), cmp.Compare(a.name, b.name))
	})
	for i, e := range gone {
		if len(gone)-i > maxGone || now.Sub(e.since) > keepGone {
			delete(r.members, e.name)
		}
	}
}

// lost picks the failed member that was called on least recently.
func (r *roster) lost(now time.Time) (netip.AddrPort, bool) {
	var next *entry
	for _, e := range r.sorted() {
		if e.state == StateFailed && (next == nil || e.tried.Before(next.tried)) {
			next = e
		}
	}
	if next == nil {
		return netip.AddrPort{}, false
	}
	next.tried = now
	return next.addr, true
}

// sorted lists all entries by name.
func (r *roster) sorted() []*entry {
	return slices.SortedFunc(maps.Values(r.members), func(a, b *entry) int { return cmp.Compare(a.name, b.name) })
}

// others counts the members in sight but for ourselves.
func (r *roster) others() (n int) {
	for _, e := range r.members {
		if e.state.present() && e.name != r.self {
			n++
		}
	}
	return n
}

// at says whether a member in sight, or this node, has the address.
func (r *roster) at(addr netip.AddrPort) bool {
	for _, e := range r.members {
		if e.state.present() && e.addr == addr {
			return true
		}
	}
	return false
}

func stateOf(m meta) State {
	if m.leaving {
		return StateLeaving
	}
	return StateAlive
}

func (e *entry) member() Member {
	return Member{
		Name: e.name, Boot: e.boot, Addr: e.addr.String(), Zone: e.meta.zone, State: e.state,
		Labels: maps.Clone(e.meta.labels), Voter: e.meta.note.Voter, Since: e.since,
	}
}
