package deque

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The model explores every interleaving of the atomic and the plain accesses of one
// owner and two thieves. That is exact: Go's atomics are sequentially consistent,
// and all other accesses are shown to be free of races on the way. Positions in the
// word wrap at twice the size, as they wrap at 2^32 in the ring.

const (
	size    = 2
	wrap    = 2 * size // the word's positions are modulo this
	thieves = 2
)

// Ways to break the ring. Each must be found.
const (
	sound           = ""
	pushBlindly     = "push does not ask whether the slot is free"
	popBlindly      = "pop stores the word instead of swapping it"
	swapHeadOnly    = "steal compares only the head"
	readFirst       = "steal reads the slots before it claims them"
	returnFirst     = "steal gives the slot back before it reads it"
	shortTurn       = "steal tells the wrapped position as turn"
	shiftKeepsPos   = "shift does not move the slot's position"
	hideBeyondGrain = "reclaim leaves lim where it was"
)

var mutants = []string{pushBlindly, popBlindly, swapHeadOnly, readFirst, returnFirst, shortTurn, shiftKeepsPos, hideBeyondGrain}

type thief struct {
	pc, left       uint8
	head, split, n uint8 // what it loaded, and its claim
	i, elem        uint8
}

// Where a thief stands.
const (
	load uint8 = iota
	claim
	read
	clear
	giveBack
)

type state struct {
	head, split uint8 // the word
	elem        [size]uint8
	turn, pos   [size]uint8

	tail, ownSplit, lim uint8
	op, pc              uint8
	sawHead, sawSplit   uint8
	slow                bool
	next                uint8 // the next element to push
	thieves             [thieves]thief
	taken               uint16
	fault               uint8
}

const (
	tookNothing uint8 = iota + 1
	tookTwice
	hidden
	stuckFull
)

// program is what the owner does: u push, o pop, f shift, e expose.
type program struct {
	ops    string
	grain  uint8
	mutant string
}

func (s *state) take(v uint8) {
	if v == 0 {
		s.fault = tookNothing
	} else if s.taken&(1<<v) != 0 {
		s.fault = tookTwice
	}
	s.taken |= 1 << v
}

func (s *state) done(p *program) {
	s.op++
	s.pc, s.sawHead, s.sawSplit, s.slow = 0, 0, 0, false
	if s.tail-s.ownSplit > p.grain || s.lim-s.ownSplit > p.grain {
		s.fault = hidden
	}
}

func (s *state) free(q uint8) bool {
	i := q % size
	if s.pos[i] != q && s.turn[i] == q {
		s.pos[i] = q
	}
	return s.pos[i] == q
}

func (s state) owner(p *program) state {
	switch p.ops[s.op] {
	case 'u':
		s.push(p)
	case 'o':
		s.pop(p)
	case 'f':
		s.shift(p)
	case 'e':
		n := s.tail - s.ownSplit
		s.ownSplit += n
		s.split = (s.split + n) % wrap
		s.done(p)
	}
	return s
}

func (s *state) push(p *program) {
	switch s.pc {
	case 0: // is there room
		s.slow = s.tail == s.lim
		if s.slow && !s.free(s.tail) && p.mutant != pushBlindly {
			busy := false
			for _, t := range s.thieves {
				busy = busy || t.pc > claim
			}
			if !busy && (s.tail-s.head)%wrap < size {
				s.fault = stuckFull
			}
			s.done(p)
			return
		}
		s.pc = 1
	case 1: // fill
		s.elem[s.tail%size] = s.next
		s.next++
		s.tail++
		if !s.slow {
			s.done(p)
			return
		}
		s.pc = 2
	case 2: // publish
		if private := s.tail - s.ownSplit; private > p.grain {
			n := private - p.grain/2
			s.ownSplit += n
			s.split = (s.split + n) % wrap
		}
		s.lim = s.tail
		s.pc = 3
	case 3: // look for free slots
		if s.lim == s.ownSplit+p.grain || !s.free(s.lim) {
			s.done(p)
			return
		}
		s.lim++
	}
}

func (s *state) pop(p *program) {
	switch s.pc {
	case 0:
		if s.tail != s.ownSplit {
			s.pc = 2
			return
		}
		s.sawHead, s.sawSplit = s.head, s.split
		if s.sawHead == s.ownSplit%wrap {
			s.done(p)
			return
		}
		s.pc = 1
	case 1: // take public elements back
		if (s.head != s.sawHead || s.split != s.sawSplit) && p.mutant != popBlindly {
			s.pc = 0
			return
		}
		s.head = s.sawHead
		n := max(1, min(((s.ownSplit-s.sawHead)%wrap+1)/2, (p.grain+1)/2))
		s.split = (s.sawSplit + wrap - n) % wrap
		s.ownSplit -= n
		if p.mutant != hideBeyondGrain {
			s.lim = min(s.lim, s.ownSplit+p.grain)
		}
		s.pc = 2
	case 2:
		s.tail--
		i := s.tail % size
		v := s.elem[i]
		s.elem[i] = 0
		s.take(v)
		s.done(p)
	}
}

func (s *state) shift(p *program) {
	switch s.pc {
	case 0:
		s.sawHead, s.sawSplit = s.head, s.split
		if s.sawHead == s.ownSplit%wrap && s.tail == s.ownSplit {
			s.done(p)
			return
		}
		s.pc = 1
	case 1:
		if s.head != s.sawHead || s.split != s.sawSplit {
			s.pc = 0
			return
		}
		s.head = (s.head + 1) % wrap
		if s.sawHead == s.ownSplit%wrap {
			s.ownSplit++
			s.split = s.head
		}
		s.pc = 2
	case 2:
		i := s.sawHead % size
		v := s.elem[i]
		s.elem[i] = 0
		if p.mutant != shiftKeepsPos {
			s.pos[i] += size
		}
		s.take(v)
		s.done(p)
	}
}

func (s state) thief(j int, p *program) state {
	t := &s.thieves[j]
	i := (t.head + t.i) % wrap % size
	switch t.pc {
	case load:
		t.head, t.split = s.head, s.split
		public := (t.split - t.head) % wrap
		t.n = public - public/2
		switch {
		case t.n == 0:
			t.end()
		case p.mutant == readFirst:
			t.n, t.pc = 1, read
		default:
			t.pc = claim
		}
	case claim:
		if s.head != t.head || s.split != t.split && p.mutant != swapHeadOnly {
			t.end()
			return s
		}
		s.head = (t.head + t.n) % wrap
		t.pc = read
		if p.mutant == returnFirst {
			t.pc = giveBack
		} else if p.mutant == readFirst {
			t.pc = clear
		}
	case read:
		t.elem, t.pc = s.elem[i], clear
		if p.mutant == readFirst {
			t.pc = claim
		}
	case clear:
		s.elem[i] = 0
		s.take(t.elem)
		t.elem, t.pc = 0, giveBack
		if p.mutant == returnFirst {
			t.step()
		}
	case giveBack:
		s.turn[i] = s.pos[i] + size
		if p.mutant == shortTurn {
			s.turn[i] %= wrap
		}
		if p.mutant == returnFirst {
			t.pc = read
			return s
		}
		t.step()
	}
	return s
}

func (t *thief) step() {
	t.i++
	t.pc = read
	if t.i == t.n {
		t.end()
	}
}

func (t *thief) end() { *t = thief{left: t.left - 1} }

// touched is the slot whose plain memory the next step of a thief accesses, or -1.
func (t *thief) touched() int {
	if t.pc >= read { // giveBack reads the slot's position
		return int((t.head + t.i) % wrap % size)
	}
	return -1
}

// ownerTouches is the slot that the owner's next step accesses, or -1.
func (s *state) ownerTouches(p *program) int {
	if int(s.op) == len(p.ops) {
		return -1
	}
	switch op := p.ops[s.op]; {
	case op == 'u' && s.pc == 1:
		return int(s.tail % size)
	case op == 'o' && s.pc == 2:
		return int((s.tail - 1) % size)
	case op == 'f' && s.pc == 2:
		return int(s.sawHead % size)
	}
	return -1
}

func (s *state) race(p *program) bool {
	o := s.ownerTouches(p)
	a, b := s.thieves[0].touched(), s.thieves[1].touched()
	return a >= 0 && (a == o || a == b) || b >= 0 && b == o
}

// explore returns how many states the program has, and what goes wrong in one of them.
func explore(p program, steals uint8) (states int, err error) {
	first := state{next: 1}
	for i := range uint8(size) {
		first.turn[i], first.pos[i] = i, i
	}
	for j := range first.thieves {
		first.thieves[j].left = steals
	}
	seen, todo := map[state]struct{}{first: {}}, []state{first}
	reach := func(n state) {
		if _, ok := seen[n]; !ok {
			seen[n] = struct{}{}
			todo = append(todo, n)
		}
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if s.fault != 0 {
			return len(seen), fmt.Errorf("%+v: fault %d in %+v", p, s.fault, s)
		}
		if s.race(&p) {
			return len(seen), fmt.Errorf("%+v: race in %+v", p, s)
		}
		over := true
		if int(s.op) < len(p.ops) {
			over = false
			reach(s.owner(&p))
		}
		for j := range s.thieves {
			if s.thieves[j].left > 0 {
				over = false
				reach(s.thief(j, &p))
			}
		}
		if over && !s.complete() {
			return len(seen), fmt.Errorf("%+v: an element is lost or there twice: %+v", p, s)
		}
	}
	return len(seen), nil
}

// complete tells whether every element pushed was taken or is still there (D1).
func (s *state) complete() bool {
	var left uint16
	for q := s.tail - (s.tail-s.head)%wrap; q != s.tail; q++ {
		left |= 1 << s.elem[q%size]
	}
	return left&s.taken == 0 && left|s.taken == 1<<s.next-2
}

// programs yields every owner program of n operations that begins with a push.
func programs(n int, ops string, yield func(string) bool) bool {
	if n == 1 {
		return yield("u")
	}
	return programs(n-1, ops, func(head string) bool {
		for _, o := range ops {
			if !yield(head + string(o)) {
				return false
			}
		}
		return true
	})
}

// lapping programs fill the ring over and over, so that the word wraps.
var lapping = []string{"uuouuouou", "uuufuufuuo", "uufouuouufu", "uuuuoooouuuu", "ufufufufufuf", "ueueuofueuou"}

func check(mutant string, ops int, steals uint8) (count, states int, err error) {
	one := func(p program, steals uint8) bool {
		n := 0
		n, err = explore(p, steals)
		states += n
		count++
		return err == nil
	}
	for grain := range uint8(size/2 + 1) {
		kinds := "uof"
		if grain > 0 {
			kinds = "uofe"
		}
		if !programs(ops, kinds, func(s string) bool { return one(program{s, grain, mutant}, steals) }) {
			return count, states, err
		}
		for _, s := range lapping {
			if grain == 0 {
				s = strings.ReplaceAll(s, "e", "")
			}
			if !one(program{s, grain, mutant}, steals) {
				return count, states, err
			}
		}
	}
	return count, states, nil
}

func TestEveryInterleavingTakesEveryElementOnce(t *testing.T) {
	ops := 6
	if testing.Short() {
		ops = 5
	}
	programs, states, err := check(sound, ops, 2)
	require.NoError(t, err)
	t.Logf("%d programs, %d states", programs, states)
}

func TestTheModelSeesEveryMutant(t *testing.T) {
	for _, mutant := range mutants {
		t.Run(mutant, func(t *testing.T) {
			programs, states, err := check(mutant, 5, 2)
			require.Error(t, err, "%d programs, %d states", programs, states)
			t.Log(programs, states, err)
		})
	}
}
