package machine

import (
	"cmp"
	"slices"
)

// The wait graph. A wait stands in the way of nobody but its line; what it waits
// for is the hold of its lock's holder. That hold ends only when the calls made in
// its context have returned, so it depends on the waits that name it in their
// lineage, and on nothing else: without lineage nothing ever looks like a deadlock
// (protocol 21). Those ahead in the line wait for the same hold and add no edges;
// a wait that becomes a hold has nothing under it yet. So a cycle can only come
// into being when a wait does, and goes through it.

// deadlock returns the cycle that the wait r has closed, or nil.
func (l *locks) deadlock(r *request) *Cycle {
	if len(r.detail().lineage) == 0 || r.lock.holder == nil {
		return nil
	}
	s := search{goal: r, seen: map[*request]bool{}, left: l.limit.Edges}
	return s.cycle(r)
}

// search is one walk along the wait graph.
type search struct {
	goal *request
	seen map[*request]bool // holds
	left uint64            // edges that may still be looked at
}

// step is a wait and the hold it waits for, while its holds' waits are looked at.
type step struct {
	wait *request
	next int // in under of the hold
}

// cycle follows the wait r over any number of holds to one that the goal was made
// under. It keeps its own stack: a chain may be as long as a line.
func (s *search) cycle(r *request) *Cycle {
	stack := []step{{wait: r}}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		hold := top.wait.lock.holder
		if top.next == 0 && s.closes(hold) {
			return named(stack)
		}
		under := hold.detail().under
		if top.next == len(under) {
			stack = stack[:len(stack)-1]
			continue
		}
		wait := under[top.next]
		top.next++
		if s.left == 0 {
			return nil
		}
		s.left--
		if h := wait.lock.holder; h != nil && !s.seen[h] {
			s.seen[h] = true
			stack = append(stack, step{wait: wait})
		}
	}
	return nil
}

// named turns the steps of a cycle into what its victim is told.
func named(path []step) *Cycle {
	c := &Cycle{}
	for _, at := range path {
		w := at.wait
		c.Edges = append(c.Edges, Edge{Lock: w.lock.name, Waiter: w.owner(), Holder: w.lock.holder.owner()})
	}
	return c
}

func (s *search) closes(hold *request) bool {
	return slices.Contains(s.goal.more.lineage, hold.ref())
}

// hang enters a wait under each hold of its lineage that is one.
func (l *locks) hang(r *request) {
	for _, ref := range r.detail().lineage {
		h := l.hold(ref)
		if h == nil {
			continue
		}
		if h.more == nil {
			h.more = &details{}
		}
		if i, found := slices.BinarySearchFunc(h.more.under, r, byRef); !found {
			h.more.under = slices.Insert(h.more.under, i, r)
		}
	}
}

// unhang undoes hang when the wait ends.
func (l *locks) unhang(r *request) {
	for _, ref := range r.detail().lineage {
		h := l.hold(ref)
		if h == nil {
			continue
		}
		if i, found := slices.BinarySearchFunc(h.detail().under, r, byRef); found {
			h.more.under = slices.Delete(h.more.under, i, i+1)
		}
	}
}

// hold resolves the name of a hold, checked against who holds now.
func (l *locks) hold(ref HoldRef) *request {
	s := l.sessions.open(ref.Session)
	if s == nil || s.requests[ref.Seq] == nil || !s.requests[ref.Seq].held() {
		return nil
	}
	return s.requests[ref.Seq]
}

// byRef orders requests the same on every replica, also after a snapshot.
func byRef(a, b *request) int {
	return cmp.Or(cmp.Compare(a.session.id, b.session.id), cmp.Compare(a.seq, b.seq))
}
