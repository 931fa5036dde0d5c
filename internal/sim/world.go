package sim

import (
	"fmt"
	"io"
	"math/rand/v2"

	"go.etcd.io/raft/v3"
)

const (
	microsecond = 1_000
	millisecond = 1_000_000
	second      = 1_000_000_000
)

// Config is one run.
type Config struct {
	Seed   uint64
	Steps  int         // events until the faults end
	Trace  io.Writer   // one line for each event; nil writes none
	Logger raft.Logger // of all replicas: its Panic must not return

	mutant mutant
	narrow bool // only what brings holders in trouble: clients without connection, clocks at their limits, loops that stall
}

// Report is what a run came to.
type Report struct {
	Seed  uint64
	Hash  uint64 // over every event: equal seeds, equal hashes
	Err   error  // the broken invariant, or nil
	Stats Stats
}

// Stats counts what happened, so that a test can tell a run from an idle one.
type Stats struct {
	Steps, Nodes, Entries, Terms        int
	Crashes, PowerLosses, Pauses, Cuts  int
	Answers, Retries, Unknown           int
	Grants, Losses, Expired, Reads      int
	Submitted, Finished, Refused, Swaps int
}

// world is a run under way.
type world struct {
	cfg    Config
	rnd    *rand.Rand
	now    uint64 // ns since the beginning
	events schedule
	hash   uint64
	stats  Stats
	err    error

	nodes   []*node
	clients []*client
	net     network
	check   *checker
	faults  faults
	tick    uint64
	pace    uint64 // between two pieces of a client's work, up to
	calm    bool   // the faults have ended
}

// Run runs a seed to its end, or until an invariant is broken.
func Run(cfg Config) Report {
	w := newWorld(cfg)
	for w.err == nil && w.stats.Steps < cfg.Steps && w.step() {
	}
	if w.err == nil {
		w.recover()
	}
	w.stats.Entries, w.stats.Terms = int(w.check.applied), int(w.check.term)
	if w.err != nil {
		w.err = fmt.Errorf("seed %d, step %d, %d.%03d s: %w", cfg.Seed, w.stats.Steps, w.now/second, w.now%second/millisecond, w.err)
	}
	return Report{Seed: cfg.Seed, Hash: w.hash, Err: w.err, Stats: w.stats}
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, rnd: rand.New(rand.NewPCG(cfg.Seed, 0x636c6174746572))}
	n := []int{1, 3, 3, 3, 5}[w.rnd.IntN(5)]
	w.stats.Nodes = n
	w.tick = []uint64{20 * millisecond, 50 * millisecond}[w.rnd.IntN(2)]
	w.pace = []uint64{80 * millisecond, 300 * millisecond, second}[w.rnd.IntN(3)]
	w.check = newChecker(w)
	for i := range n {
		w.nodes = append(w.nodes, newNode(w, i))
	}
	for i := range 3 + w.rnd.IntN(3) {
		w.clients = append(w.clients, newClient(w, n+i))
	}
	w.net = newNetwork(w, n+len(w.clients))
	w.faults = newFaults(w)
	for _, n := range w.nodes {
		w.after(w.upTo(50*millisecond), n.found)
	}
	for _, c := range w.clients {
		w.after(w.upTo(200*millisecond), c.begin)
	}
	w.after(w.between(300*millisecond, second), w.faults.strike)
	return w
}

// step handles the next event.
func (w *world) step() bool {
	e, ok := w.events.pop()
	if !ok {
		return false
	}
	w.stats.Steps++
	w.now = e.at
	e.act()
	return w.err == nil
}

// recover ends all faults and demands that everything comes to its end.
func (w *world) recover() {
	w.calm = true
	w.faults.heal()
	deadline := w.now + 30*second
	for w.err == nil && w.now < deadline && !w.settled() && w.step() {
	}
	if w.err == nil && !w.settled() {
		w.fail("P10: %s is not at rest 30 s after the last fault", w.unsettled())
	}
	if w.err == nil {
		w.check.end()
	}
}

func (w *world) settled() bool { return w.unsettled() == "" }

// unsettled names something that is not at rest yet.
func (w *world) unsettled() string {
	for _, c := range w.clients {
		if what := c.busy(); what != "" {
			return fmt.Sprintf("client %d with %s", c.at, what)
		}
	}
	if n := w.check.undone(); n > 0 {
		return fmt.Sprintf("%d of the tasks", n)
	}
	for _, n := range w.nodes {
		if !n.up() || n.machine.Applied() != w.check.applied {
			return fmt.Sprint("node ", n.id)
		}
	}
	return ""
}

// fail notes the first broken invariant.
func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// note adds an event to the trace.
func (w *world) note(what string, who int, a, b uint64) {
	h := w.hash
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 0x100000001b3
	}
	for _, v := range [...]uint64{w.now, uint64(who), a, b} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	w.hash = h
	if w.cfg.Trace != nil {
		fmt.Fprintf(w.cfg.Trace, "%6d %4d.%06d %2d %s %x %x\n", w.stats.Steps, w.now/second, w.now%second/microsecond, who, what, a, b)
	}
}

func (w *world) after(delay uint64, act func()) { w.events.push(w.now+delay, act) }

func (w *world) upTo(ns uint64) uint64 { return w.rnd.Uint64N(ns + 1) }

func (w *world) between(from, to uint64) uint64 { return from + w.rnd.Uint64N(to-from+1) }

// chance is true once in n times.
func (w *world) chance(n int) bool { return w.rnd.IntN(n) == 0 }

// clock is a monotonic clock with a rate of its own, in thousandths of real time.
type clock struct{ rate, offset uint64 }

// newClock prefers the ends of what the promises allow: there nothing is to spare.
func (w *world) newClock() clock {
	rate := w.between(900, 1100)
	if w.chance(2) || w.cfg.narrow {
		rate = []uint64{900, 1100}[w.rnd.IntN(2)]
	}
	return clock{rate: rate, offset: w.upTo(1000 * second)}
}

// read returns what the clock shows at real time now.
func (c clock) read(now uint64) uint64 { return c.offset + now/1000*c.rate + now%1000*c.rate/1000 }

// real returns how much real time passes while the clock advances by d, at least.
func (c clock) real(d uint64) uint64 { return (d*1000 + c.rate - 1) / c.rate }

// schedule is the heap of events to come, by time and then by age.
type schedule struct {
	heap []event
	seq  uint64
}

type event struct {
	at, seq uint64
	act     func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (s *schedule) push(at uint64, act func()) {
	s.seq++
	h := append(s.heap, event{at, s.seq, act})
	for i := len(h) - 1; i > 0 && h[i].before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	s.heap = h
}

func (s *schedule) pop() (event, bool) {
	h := s.heap
	if len(h) == 0 {
		return event{}, false
	}
	top := h[0]
	last := len(h) - 1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		least := i
		for _, c := range [...]int{2*i + 1, 2*i + 2} {
			if c < len(h) && h[c].before(&h[least]) {
				least = c
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	s.heap = h
	return top, true
}
