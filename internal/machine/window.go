package machine

import (
	"slices"
	"sort"
)

// window is what a session remembers of its commands, so that none is applied
// twice (L4). A sequence is in one of three states: forgotten (below floor, or in
// done), answered (in answers), or not seen yet.
type window struct {
	floor   uint64
	done    []span // forgotten from floor on: sorted, disjoint, not touching, above floor
	answers map[uint64]Result
	bytes   uint64 // of the bodies of answers
}

// span is the sequences from, from+1, ... to-1.
type span struct{ from, to uint64 }

func (s *span) fields(k *coder) { k.u64(&s.from); k.u64(&s.to) }

// acknowledge forgets the answers that the sender has or does not want any more.
func (w *window) acknowledge(floor uint64, done []uint64, most uint64) {
	for _, seq := range done {
		w.forget(seq)
	}
	for uint64(len(w.done)) > most { // more holes than commands may be outstanding: refusing the oldest is safe
		floor = max(floor, w.done[0].to)
		w.raise(floor)
	}
	w.raise(floor)
}

func (w *window) raise(floor uint64) {
	if floor > w.floor {
		w.drop(w.floor, floor)
		w.floor = floor
	}
	n := 0
	for n < len(w.done) && w.done[n].from <= w.floor {
		w.floor = max(w.floor, w.done[n].to)
		n++
	}
	w.done = slices.Delete(w.done, 0, n)
}

// drop removes the answers from..to-1, by the shorter way.
func (w *window) drop(from, to uint64) {
	if to-from < uint64(len(w.answers)) {
		for seq := from; seq < to; seq++ {
			w.remove(seq)
		}
		return
	}
	for seq := range w.answers {
		if seq >= from && seq < to {
			w.remove(seq)
		}
	}
}

func (w *window) remove(seq uint64) {
	if r, ok := w.answers[seq]; ok {
		w.bytes -= uint64(len(r.Body))
		delete(w.answers, seq)
	}
}

// forget puts seq into done.
func (w *window) forget(seq uint64) {
	if seq == 1<<64-1 || w.forgotten(seq) {
		return
	}
	w.remove(seq)
	i := w.find(seq)
	left := i > 0 && w.done[i-1].to == seq
	right := i < len(w.done) && w.done[i].from == seq+1
	switch {
	case left && right:
		w.done[i-1].to = w.done[i].to
		w.done = slices.Delete(w.done, i, i+1)
	case left:
		w.done[i-1].to++
	case right:
		w.done[i].from--
	default:
		w.done = slices.Insert(w.done, i, span{seq, seq + 1})
	}
}

// find returns the first span that starts above seq.
func (w *window) find(seq uint64) int {
	return sort.Search(len(w.done), func(i int) bool { return w.done[i].from > seq })
}

func (w *window) forgotten(seq uint64) bool {
	if seq < w.floor {
		return true
	}
	i := w.find(seq)
	return i > 0 && seq < w.done[i-1].to
}

// seen returns what a copy of seq is answered with.
func (w *window) seen(seq uint64) (Result, bool) {
	if r, ok := w.answers[seq]; ok {
		return r, true
	}
	return Result{Code: Stale}, w.forgotten(seq)
}

func (w *window) remember(seq uint64, r Result) {
	if w.answers == nil {
		w.answers = map[uint64]Result{}
	}
	w.remove(seq)
	w.answers[seq] = r
	w.bytes += uint64(len(r.Body))
}

// replace changes an answer that is still kept.
func (w *window) replace(seq uint64, r Result) {
	if _, ok := w.answers[seq]; ok {
		w.remember(seq, r)
	}
}

func (w *window) full(limit *sessionLimit) bool {
	return uint64(len(w.answers)) >= limit.Outstanding || w.bytes >= limit.Answers
}

func (w *window) fields(k *coder) {
	k.u64(&w.floor)
	list(k, &w.done)
	seqs := sortedKeys(w.answers)
	n := k.count(len(seqs))
	for i := 0; i < n && k.err == nil; i++ {
		var seq uint64
		var r Result
		if !k.reading {
			seq = seqs[i]
			r = w.answers[seq]
		}
		k.u64(&seq)
		r.fields(k)
		if k.reading {
			r.Body = cloned(r.Body)
			w.remember(seq, r)
		}
	}
}
