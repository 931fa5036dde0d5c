package machine

import "fmt"

// counters are numbers by name, and in a space of their own blocks of unique ids.
// Both live for ever: a counter that were forgotten would count twice.
type counters struct {
	values map[string]uint64 // two's complement
	blocks map[string]uint64 // the last id given, with its incarnation on top
}

func newCounters() counters {
	return counters{values: map[string]uint64{}, blocks: map[string]uint64{}}
}

// maxBlock lets some thousand blocks of the greatest size fit an incarnation.
const maxBlock = 1 << 30

// add wraps around at the ends of int64, as Go's own addition does.
func (t *counters) add(_ *apply, _ *session, c *Add) Result {
	if why := checkName(c.Name); why != "" {
		return invalid("counter " + why)
	}
	v := t.values[c.Name] + uint64(c.Delta)
	t.set(c.Name, v)
	return Result{N: v}
}

func (t *counters) swap(_ *apply, _ *session, c *SwapCounter) Result {
	if why := checkName(c.Name); why != "" {
		return invalid("counter " + why)
	}
	if v := t.values[c.Name]; v != uint64(c.Old) {
		return Result{Code: Conflict, N: v}
	}
	t.set(c.Name, uint64(c.New))
	return Result{N: uint64(c.New)}
}

// set keeps no record of a 0: it reads as a counter that was never used.
func (t *counters) set(name string, v uint64) {
	if v == 0 {
		delete(t.values, name)
		return
	}
	t.values[name] = v
}

// block reserves ids of one name: unique and growing for ever, also over recoveries.
func (t *counters) block(a *apply, _ *session, c *IDBlock) Result {
	if why := checkName(c.Name); why != "" {
		return invalid("id block " + why)
	}
	if c.Size == 0 || c.Size > maxBlock {
		return invalid(fmt.Sprintf("an id block has 1 to %d ids, not %d", maxBlock, c.Size))
	}
	first := a.m.follow(t.blocks[c.Name])
	last := first + c.Size - 1
	if last>>counterBits != a.m.incarnation {
		return Result{Code: Full, N: 1<<counterBits - 1}
	}
	t.blocks[c.Name] = last
	return Result{N: first}
}

func (t *counters) query(q *Query) Result { return Result{N: t.values[q.Name]} }

func (t *counters) due(*apply) {}

func (t *counters) next() (uint64, bool) { return 0, false }

func (t *counters) ended(*apply, SessionID, bool) {}

func (t *counters) fields(k *coder) {
	numbers(k, t.values)
	numbers(k, t.blocks)
}

// numbers codes a map in the order of its names.
func numbers(k *coder, m map[string]uint64) {
	var names []string
	if !k.reading {
		names = sortedKeys(m)
	}
	n := k.count(len(names))
	for i := 0; i < n && k.err == nil; i++ {
		var name string
		var v uint64
		if !k.reading {
			name, v = names[i], m[names[i]]
		}
		k.str(&name)
		k.u64(&v)
		if k.reading {
			m[name] = v
		}
	}
}
