package machine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Machine is the replicated state: sessions and all that hangs on them.
type Machine struct {
	applied     uint64 // raft index of the last entry
	term        uint64 // and its term
	clock       uint64 // cluster time of the last entry, ns
	wall        int64
	hash        uint64 // chain over all entries, answers and events so far
	rev         Rev    // last revision given
	incarnation uint64 // on top of every token, id and revision (protocol 6)
	ids         uint64 // ids minted in this incarnation

	history  history
	sessions sessions
	locks    locks
	keys     keys
	counters counters
	tasks    tasks

	parts []part // of this machine, in the order in which they act at one instant
}

// New returns the state before the first entry.
func New() *Machine {
	m := &Machine{rev: 1} // of the empty state: to watchers 0 means now
	m.history.limit = historyLimit{Events: 10_000, Bytes: 64 << 20}
	m.sessions = sessions{
		byID:     map[SessionID]*session{},
		opened:   map[opening]*session{},
		defaults: map[uint64][]*session{},
		limit:    sessionLimit{Sessions: 100_000, Outstanding: 4096, Answers: 16 << 20},
	}
	m.locks = locks{limit: lockLimit{Waiters: 10_000, Edges: 10_000}}
	m.keys, m.counters, m.tasks = newKeys(), newCounters(), newTasks()
	m.wire()
	return m
}

// wire sets the pointers between the parts.
func (m *Machine) wire() {
	m.locks.sessions, m.tasks.sessions = &m.sessions, &m.sessions
	m.parts = []part{&m.sessions, &m.locks, &m.keys, &m.counters, &m.tasks}
	m.sessions.parts = m.parts
}

// apply is the command being applied: what it may read of the moment, and where
// its events go. Nothing else reaches a command, so that equal logs give equal
// states (R1).
type apply struct {
	m     *Machine
	index uint64
	term  uint64
	clock uint64
	wall  int64
	seq   uint64 // of the command
	out   *Outcome
}

// part is one noun of the machine: sessions, locks, keys, counters, tasks.
type part interface {
	// due does, in the order (time, name), all that is due at a.clock.
	due(a *apply)
	// next is the cluster time at which something will be due.
	next() (clock uint64, some bool)
	// ended drops what hangs on a session that has just ended.
	ended(a *apply, s SessionID, crashed bool)
	// fields codes the whole part for a snapshot, in one order whatever its history.
	fields(k *coder)
}

// tell records an event that only its session is told.
func (a *apply) tell(e Event) { a.out.Events = append(a.out.Events, e) }

// change records an observable event under the next revision and returns that.
func (a *apply) change(e Event) Rev {
	a.m.rev++
	e.Rev = a.m.rev
	a.out.Events = append(a.out.Events, e)
	if e.Kind != EventTask {
		a.m.history.add(e)
	}
	return e.Rev
}

// mint returns a new id: unique and growing over all kinds of ids.
func (m *Machine) mint() uint64 {
	m.ids++
	return m.numbered(m.ids)
}

// numbered puts the incarnation on top of a counter of the machine.
func (m *Machine) numbered(counter uint64) uint64 { return m.incarnation<<counterBits | counter }

// follow returns the number after last: consecutive within an incarnation.
func (m *Machine) follow(last uint64) uint64 {
	return max(last+1, m.numbered(1))
}

// Apply carries out one committed raft entry. An entry that was applied before
// changes nothing, and neither does an empty one, raft's own. An error means that
// the entry, or what it would do, breaks the log's rules: nothing of it is kept and
// the replica must stop. The Outcome does not alias entry.
func (m *Machine) Apply(index, term uint64, entry []byte) (Outcome, error) {
	if index <= m.applied {
		return Outcome{}, nil
	}
	if term < m.term {
		return Outcome{}, fmt.Errorf("machine: entry %d has term %d after term %d", index, term, m.term)
	}
	if len(entry) == 0 {
		m.applied, m.term = index, term
		return Outcome{}, nil
	}
	stamp, cmds, err := DecodeEntry(entry)
	if err != nil {
		return Outcome{}, fmt.Errorf("machine: entry %d: %w", index, err)
	}
	if stamp.Clock < m.clock {
		return Outcome{}, fmt.Errorf("machine: entry %d: the cluster clock goes back from %d to %d ns", index, m.clock, stamp.Clock)
	}
	out := Outcome{Stamp: stamp, Answers: make([]Answer, len(cmds))}
	a := &apply{m: m, index: index, term: term, clock: m.clock, wall: stamp.Wall, out: &out}
	m.runDue(a, stamp.Clock)
	a.clock = stamp.Clock
	for i, raw := range cmds {
		m.command(a, raw, &out.Answers[i])
		m.tasks.settle(a)
	}
	m.applied, m.term, m.clock, m.wall = index, term, stamp.Clock, stamp.Wall
	m.chain(entry, &out)
	return out, nil
}

// runDue does all that falls due up to clock, each at its own time and in the order
// (time, part, name), as if an entry had come at that time (protocol 22).
func (m *Machine) runDue(a *apply, clock uint64) {
	for {
		var first part
		var at uint64
		for _, p := range m.parts {
			if t, some := p.next(); some && t <= clock && (first == nil || t < at) {
				first, at = p, t
			}
		}
		if first == nil {
			return
		}
		a.clock = max(a.clock, at)
		first.due(a)
	}
}

// Applied returns the raft index of the last entry.
func (m *Machine) Applied() uint64 { return m.applied }

// Clock returns the cluster time of the last entry, ns.
func (m *Machine) Clock() uint64 { return m.clock }

// Hash chains all entries, answers and events so far: two replicas that applied
// the same index and differ in it have diverged (R1).
func (m *Machine) Hash() uint64 { return m.hash }

// NextDue returns the earliest cluster time at which an entry would do something
// by itself. The leader stamps a Tick by then.
func (m *Machine) NextDue() (clock uint64, some bool) {
	for _, p := range m.parts {
		if t, ok := p.next(); ok && (!some || t < clock) {
			clock, some = t, true
		}
	}
	return clock, some
}

// Expirable returns the earliest deadline of a session: from then on the leader
// proposes Expire.
func (m *Machine) Expirable() (clock uint64, some bool) {
	if len(m.sessions.deadlines) == 0 {
		return 0, false
	}
	return m.sessions.deadlines[0].deadline, true
}

func invalid(why string) Result { return Result{Code: Invalid, Body: []byte(why)} }

// checkName says what is wrong with a name of a lock, an election, a node or a queue.
func checkName(name string) string {
	if len(name) == 0 || len(name) > 256 {
		return "name must have 1 to 256 bytes"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return "name must be UTF-8 without control characters"
	}
	return ""
}

// later adds a duration to a cluster time; the end of time is the latest.
func later(clock, ns uint64) uint64 {
	if clock+ns < clock {
		return 1<<64 - 1
	}
	return clock + ns
}

func cloned(b []byte) []byte { return append([]byte(nil), b...) }

// sortedKeys gives a map the one order that every replica sees.
func sortedKeys[K ~uint64 | ~string, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
