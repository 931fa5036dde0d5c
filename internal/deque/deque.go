// Package deque holds the work-stealing ring: one owner pushes and takes at its
// ends, thieves take the oldest half.
//
// It is a split ring in which thieves claim first and read afterwards. Positions
// count up for ever; position p lives in slot p mod size.
//
//	head ............... split ............... tail
//	[ public: stealable )[ private: the owner's ) free
//
// One 64-bit word holds the low halves of split and head. A thief moves head
// forward by compare-and-swap and only then touches the slots that it has claimed;
// the owner takes public elements back by compare-and-swap of the same word. The
// swap validates exactly the range it takes, so that neither a wrapped word nor a
// long sleep between load and swap can take anything twice. Private elements cost
// the owner no atomic operation. The split is that of van Dijk and van de Pol,
// "Lace: Non-blocking Split Deque for Work-Stealing" (2014); stealing half is
// Hendler and Shavit, "Non-Blocking Steal-Half Work Queues" (2002).
//
// # Invariants
//
// D1: every element pushed is taken exactly once. Ownership of a slot: whoever
// moves head from i to i+n, or split from i+n to i, by compare-and-swap owns the
// elements [i, i+n). A thief gives a slot back by storing its turn; until then Push
// sees it as full. At most grain elements are private.
//
// # Concurrency
//
// Push, Pop, Shift and Expose are for the one owner; it may move between
// goroutines if something orders its calls. Steal and Len are for anybody. Push and
// Expose are wait-free. Pop, Shift and Steal are lock-free: a swap fails only
// because another one succeeded. A thief that is descheduled while it copies delays
// only the slots it has claimed: one lap later Push sees them as full.
//
// # Failure
//
// There is none but a full ring: Push says so and has changed nothing.
package deque

import (
	"math/bits"
	"sync/atomic"
)

const (
	oneSplit = 1 << 32 // added to the word, moves split by one
	headMask = oneSplit - 1
)

// MaxSize is the largest number of elements of a ring.
const MaxSize = 1 << 30

type slot[T any] struct {
	turn atomic.Uint64 // the position that the slot is free for; stored by the thief that emptied it
	pos  uint64        // the position that the slot serves; written by the owner while the slot is its own
	elem T
}

// Ring is a work-stealing ring of elements of any type. Make one with New.
type Ring[T any] struct {
	_     [64]byte // thieves write the word: nothing else shares its cache line
	state atomic.Uint64
	_     [56]byte

	// The owner's own: no thief reads these.
	tail  uint64 // where the next element goes
	split uint64 // the word's split in full: only the owner moves it
	lim   uint64 // slots [tail, lim) are known to be free, and lim-split <= grain
	_     [40]byte

	grain uint64
	mask  uint64
	slots []slot[T]
	_     [24]byte
}

// New returns an empty ring of at least size elements: the next power of two,
// between 2 and MaxSize. Up to grain of the newest elements, at most half the ring,
// are private until Expose: that saves the owner the atomic operations, and hides
// them from thieves. With grain 0 all elements are public.
func New[T any](size, grain int) *Ring[T] {
	n := uint64(1) << bits.Len64(uint64(max(2, min(size, MaxSize)))-1)
	r := &Ring[T]{
		mask:  n - 1,
		grain: min(uint64(max(grain, 0)), n/2),
		slots: make([]slot[T], n),
	}
	for i := range r.slots {
		r.slots[i].pos = uint64(i)
		r.slots[i].turn.Store(uint64(i))
	}
	return r
}

// Cap returns how many elements fit.
func (r *Ring[T]) Cap() int { return len(r.slots) }

// Len returns how many public elements there are, or were a moment ago. For the
// owner of a ring with grain 0 it is an upper bound of what it will find.
func (r *Ring[T]) Len() int {
	w := r.state.Load()
	return int(uint32(w>>32) - uint32(w))
}

// Push adds x as the newest element. False: the ring is full, or the slot is still
// being emptied by a thief; nothing has changed.
func (r *Ring[T]) Push(x T) bool {
	if t := r.tail; t != r.lim {
		r.slots[t&r.mask].elem = x
		r.tail = t + 1
		return true
	}
	return r.pushPublic(x)
}

// free reports whether the owner may fill the slot of position p, and makes it so.
func (r *Ring[T]) free(p uint64) bool {
	s := &r.slots[p&r.mask]
	if s.pos == p {
		return true
	}
	if s.turn.Load() != p { // a thief has not emptied it yet, or it holds the oldest element
		return false
	}
	s.pos = p
	return true
}

// pushPublic adds x where the private part is at its bound, and publishes.
func (r *Ring[T]) pushPublic(x T) bool {
	t := r.tail
	if !r.free(t) {
		return false
	}
	r.slots[t&r.mask].elem = x
	t++
	r.tail = t
	if r.grain == 0 {
		r.split, r.lim = t, t
		r.state.Add(oneSplit)
		return true
	}
	if private := t - r.split; private > r.grain {
		r.publish(private - r.grain/2) // half of them, so that the next pushes and pops stay private
	}
	r.lim = t
	for end := r.split + r.grain; r.lim != end && r.free(r.lim); {
		r.lim++
	}
	return true
}

func (r *Ring[T]) publish(n uint64) {
	r.split += n
	r.state.Add(n * oneSplit) // the only writer of split adds: no swap, it cannot fail
}

// Expose makes every element stealable.
func (r *Ring[T]) Expose() {
	if n := r.tail - r.split; n > 0 {
		r.publish(n)
	}
}

// Pop takes the newest element.
func (r *Ring[T]) Pop() (x T, ok bool) {
	if r.tail == r.split && !r.reclaim() {
		return x, false
	}
	r.tail--
	s := &r.slots[r.tail&r.mask]
	x, s.elem = s.elem, x // a zero element keeps nothing alive
	return x, true
}

// reclaim makes some of the newest public elements private.
func (r *Ring[T]) reclaim() bool {
	for {
		w := r.state.Load()
		public := uint64(uint32(r.split) - uint32(w))
		if public == 0 {
			return false
		}
		n := max(1, min((public+1)/2, (r.grain+1)/2))
		if !r.state.CompareAndSwap(w, w-n*oneSplit) {
			continue
		}
		r.split -= n
		r.lim = min(r.lim, r.split+r.grain) // else elements would stay private beyond the grain
		return true
	}
}

// Shift takes the oldest element.
func (r *Ring[T]) Shift() (x T, ok bool) {
	for {
		w := r.state.Load()
		h := uint32(w)
		next := w&^headMask | uint64(h+1)
		public := h != uint32(r.split)
		if !public {
			if r.tail == r.split {
				return x, false
			}
			next = uint64(h+1)<<32 | uint64(h+1)
		}
		if !r.state.CompareAndSwap(w, next) {
			continue
		}
		if !public {
			r.split++
		}
		s := &r.slots[uint64(h)&r.mask]
		x, s.elem = s.elem, x
		s.pos += r.mask + 1
		return x, true
	}
}

// Steal takes the older half of the public elements, at most len(buf), in their
// order, and returns how many. 0 with retry: another one was quicker.
func (r *Ring[T]) Steal(buf []T) (n int, retry bool) {
	w := r.state.Load()
	h := uint32(w)
	public := uint32(w>>32) - h
	claim := min(public-public/2, uint32(min(len(buf), MaxSize)))
	if claim == 0 {
		return 0, false
	}
	if !r.state.CompareAndSwap(w, w&^headMask|uint64(h+claim)) {
		return 0, true
	}
	var zero T
	for i := range claim {
		s := &r.slots[uint64(h+i)&r.mask]
		buf[i], s.elem = s.elem, zero
		s.turn.Store(s.pos + r.mask + 1) // from here on the slot is the owner's
	}
	return int(claim), false
}
