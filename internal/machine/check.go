package machine

import "fmt"

// Check returns the first invariant that the state breaks, or nil.
func (m *Machine) Check() error {
	last := m.numbered(m.ids)
	if err := m.sessions.check(SessionID(last)); err != nil {
		return err
	}
	if err := m.locks.check(); err != nil {
		return err
	}
	if err := m.keys.check(func(s SessionID) bool { return m.sessions.open(s) != nil }); err != nil {
		return err
	}
	return m.tasks.check(TaskID(last))
}

func (t *sessions) check(last SessionID) error {
	if len(t.deadlines) != len(t.byID) || len(t.opened) != len(t.byID) {
		return fmt.Errorf("L3: %d sessions, %d deadlines, %d openings", len(t.byID), len(t.deadlines), len(t.opened))
	}
	for i, s := range t.deadlines {
		if s.place != i || t.byID[s.id] != s || s.ended || s.id > last || i > 0 && s.before(t.deadlines[(i-1)/2]) {
			return fmt.Errorf("L3: session %x is out of place", uint64(s.id))
		}
		if err := s.window.check(); err != nil {
			return fmt.Errorf("L4: session %x %w", uint64(s.id), err)
		}
	}
	return nil
}

func (w *window) check() error {
	from := w.floor
	for _, d := range w.done {
		if d.from <= from || d.to <= d.from {
			return fmt.Errorf("has its forgotten sequences out of order at %d", d.from)
		}
		from = d.to
	}
	for seq := range w.answers {
		if w.forgotten(seq) {
			return fmt.Errorf("keeps and forgets the answer to %d", seq)
		}
	}
	return nil
}

func (l *locks) check() error {
	tied, delays := 0, 0
	for _, names := range l.byName {
		for _, name := range sortedKeys(names) {
			n, err := names[name].check(l)
			if err != nil {
				return err
			}
			tied += n
			if names[name].freeAt != 0 {
				delays++
			}
		}
	}
	if delays != len(l.delays) {
		return fmt.Errorf("L1: %d locks are delayed and %d delays run", delays, len(l.delays))
	}
	for _, s := range l.sessions.deadlines {
		tied -= len(s.requests)
	}
	if tied != 0 {
		return fmt.Errorf("L3: the lines have %d requests more than the sessions", tied)
	}
	return nil
}

// check returns how many requests a lock has.
func (k *lock) check(l *locks) (tied int, err error) {
	if k.holder == nil && k.first != nil && k.freeAt == 0 {
		return 0, fmt.Errorf("L1: %q is free while %d wait", k.name, k.waiting)
	}
	if k.holder != nil && k.freeAt != 0 {
		return 0, fmt.Errorf("L1: %q is held while its delay runs", k.name)
	}
	if h := k.holder; h != nil {
		if h.token != k.last || h.token == 0 {
			return 0, fmt.Errorf("L2: %q is held with token %d, the last one was %d", k.name, h.token, k.last)
		}
		if !h.tied(k, l) {
			return 0, fmt.Errorf("L3: %q is held by a session that is not open", k.name)
		}
		tied++
	}
	var prev *request
	for r := k.first; r != nil; prev, r = r, r.next {
		if r.prev != prev || r.held() || prev != nil && prev.detail().score < r.detail().score {
			return 0, fmt.Errorf("L1: the line of %q is out of order", k.name)
		}
		if !r.tied(k, l) {
			return 0, fmt.Errorf("L3: a session that is not open waits for %q", k.name)
		}
		tied++
	}
	if k.tail != prev {
		return 0, fmt.Errorf("L1: the line of %q ends elsewhere", k.name)
	}
	return tied, nil
}

func (r *request) tied(k *lock, l *locks) bool {
	return r.lock == k && l.sessions.open(r.session.id) == r.session && r.session.requests[r.seq] == r
}
