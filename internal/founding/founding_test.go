package founding

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// world is a population under a hostile schedule: messages are lost, doubled and
// late, nodes stop and come back, groups are cut off from one another.
type world struct {
	rnd    *rand.Rand
	nodes  []*sitter
	net    []mail
	group  []int
	born   map[[32]byte]*Genesis // every value that some quorum decided
	late   int                   // the last so many nodes exist only from step 600 on
	now    int
	broken func(*world, *sitter, *Reply) // a mutant of the acceptor
}

type sitter struct {
	i     int
	rules Rules
	disk  State // survives a stop, unless the node keeps nothing
	up    bool
	round *Round
	high  Ballot
	seen  map[uint64]Candidate
	since int
}

type mail struct {
	from, to int
	prepare  *Prepare
	accept   *Accept
	promise  *Reply
	vote     *Reply
	decided  *Genesis
}

func newWorld(seed uint64, n, expect, late int, durable bool) *world {
	w := &world{rnd: rand.New(rand.NewPCG(seed, 1)), group: make([]int, n), born: map[[32]byte]*Genesis{}, late: late}
	var seeds []string
	for i := range n - late {
		seeds = append(seeds, fmt.Sprintf("h%d", i))
	}
	for i := range n {
		s := &sitter{i: i, up: true, seen: map[uint64]Candidate{}}
		s.rules = Rules{Cluster: "c", Expect: expect, Voters: 3, Seeds: seeds, Self: Identity{
			ID: uint64(i + 1), Name: fmt.Sprint("n", i), Addr: fmt.Sprintf("h%d", i), Durable: durable}}
		w.nodes = append(w.nodes, s)
	}
	return w
}

func (w *world) exists(i int) bool { return i < len(w.nodes)-w.late || w.now > 600 }

func (w *world) step() {
	w.now++
	if w.rnd.IntN(100) == 0 {
		cut := w.rnd.IntN(3) > 0
		for i := range w.group {
			w.group[i] = 0
			if cut {
				w.group[i] = w.rnd.IntN(2)
			}
		}
	}
	if w.rnd.IntN(90) == 0 {
		w.flip(w.nodes[w.rnd.IntN(len(w.nodes))])
	}
	s := w.nodes[w.rnd.IntN(len(w.nodes))]
	if s.up && w.exists(s.i) {
		w.propose(s)
	}
	for range 2 {
		if len(w.net) > 0 {
			w.deliver()
		}
	}
}

func (w *world) flip(s *sitter) {
	s.up = !s.up
	s.round = nil
	if s.up && !s.rules.Self.Durable { // memory is gone: the node is somebody else now
		s.rules.Self.ID += 100
		s.disk, s.high = State{}, Ballot{}
	}
}

// propose looks around as gossip would and begins a round if the rules say so.
func (w *world) propose(s *sitter) {
	if s.disk.Decided != nil {
		return
	}
	changed := false
	for _, o := range w.nodes {
		if o != s && o.up && w.exists(o.i) && w.group[o.i] == w.group[s.i] && o.disk.Decided == nil {
			if _, had := s.seen[o.rules.Self.ID]; !had {
				changed = true
			}
			s.seen[o.rules.Self.ID] = Candidate{o.rules.Self, o.rules.Digest()}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.seen)) { // a restarted memory-only node is known dead after a while
		if w.rnd.IntN(60) == 0 {
			delete(s.seen, id)
			changed = true
		}
	}
	if changed {
		s.since = w.now
	}
	var seen []Candidate
	for _, id := range slices.Sorted(maps.Keys(s.seen)) {
		seen = append(seen, s.seen[id])
	}
	if s.rules.Judge(seen, time.Duration(w.now-s.since)*300*time.Millisecond) != nil || s.round != nil && w.rnd.IntN(10) > 0 {
		return
	}
	s.round = Begin(&s.rules, s.disk, s.high, w.rnd.Uint64())
	p := s.round.Prepare()
	w.broadcast(s, mail{prepare: &p})
}

func (w *world) broadcast(s *sitter, m mail) {
	for _, o := range w.nodes {
		m.from, m.to = s.i, o.i
		w.net = append(w.net, m)
	}
}

func (w *world) deliver() {
	k := w.rnd.IntN(len(w.net))
	m := w.net[k]
	if w.rnd.IntN(8) > 0 { // else it stays and comes again
		w.net[k] = w.net[len(w.net)-1]
		w.net = w.net[:len(w.net)-1]
	}
	to := w.nodes[m.to]
	if !to.up || !w.exists(m.to) || w.group[m.from] != w.group[m.to] || w.rnd.IntN(10) == 0 {
		return
	}
	w.receive(to, m)
}

func (w *world) receive(to *sitter, m mail) {
	reply := func(r Reply) *Reply {
		if w.broken != nil {
			w.broken(w, to, &r)
		}
		return &r
	}
	switch {
	case m.prepare != nil:
		var r Reply
		to.disk, r = to.disk.OnPrepare(&to.rules, *m.prepare)
		w.net = append(w.net, mail{from: m.to, to: m.from, promise: reply(r)})
	case m.accept != nil:
		var r Reply
		to.disk, r = to.disk.OnAccept(&to.rules, *m.accept)
		w.net = append(w.net, mail{from: m.to, to: m.from, vote: reply(r)})
	case m.decided != nil:
		to.disk, _ = to.disk.OnDecided(m.decided)
	case m.promise != nil:
		w.learn(to, m.promise)
		if to.round == nil {
			return
		}
		if a := to.round.OnPromise(*m.promise); a != nil {
			w.broadcast(to, mail{accept: a})
		}
	case m.vote != nil:
		w.learn(to, m.vote)
		if to.round == nil {
			return
		}
		if g := to.round.OnVote(*m.vote); g != nil {
			w.born[g.Hash()] = g
			to.disk, _ = to.disk.OnDecided(g)
			w.broadcast(to, mail{decided: g})
		}
	}
}

func (w *world) learn(s *sitter, r *Reply) {
	if r.Decided != nil {
		s.disk, _ = s.disk.OnDecided(r.Decided)
	}
	if s.high.less(r.Promised) {
		s.high = r.Promised
	}
}

// living counts the clusters of which a majority of the voters is still itself: a
// node that keeps nothing is gone for good once it stops.
func (w *world) living() (n int) {
	for _, g := range w.born {
		same := 0
		for _, v := range g.Voters {
			for _, s := range w.nodes {
				if s.rules.Self.ID == v.ID && (s.up || v.Durable) {
					same++
				}
			}
		}
		if same > len(g.Voters)/2 {
			n++
		}
	}
	return n
}

func TestAtMostOneClusterIsFounded(t *testing.T) {
	for _, c := range []struct {
		n, expect, late int
		durable         bool
	}{{1, 1, 0, true}, {2, 2, 0, true}, {3, 3, 0, true}, {5, 5, 0, true}, {6, 6, 0, true}, {6, 3, 3, true}, {5, 5, 0, false}, {3, 3, 0, false}} {
		t.Run(fmt.Sprintf("%d nodes expect %d late %d durable %v", c.n, c.expect, c.late, c.durable), func(t *testing.T) {
			formed := 0
			for seed := range uint64(300) {
				w := newWorld(seed, c.n, c.expect, c.late, c.durable)
				for range 2500 {
					w.step()
					if len(w.born) > 1 && w.living() > 1 {
						t.Fatalf("seed %d: two clusters live at step %d", seed, w.now)
					}
				}
				if c.durable {
					require.LessOrEqual(t, len(w.born), 1, "seed %d", seed)
				}
				formed += min(len(w.born), 1)
			}
			t.Logf("%d of 300 hostile schedules founded a cluster", formed)
			require.Greater(t, formed, 30, "the check is empty if next to nothing is ever founded")
		})
	}
}

func TestTheSimulationFindsBrokenAcceptors(t *testing.T) {
	mutants := map[string]func(*world, *sitter, *Reply){
		"promises and votes are forgotten": func(w *world, s *sitter, r *Reply) {
			if s.disk.Decided == nil && w.rnd.IntN(3) == 0 {
				s.disk = State{}
			}
		},
		"an earlier vote is not told":   func(_ *world, _ *sitter, r *Reply) { r.Accepted = nil },
		"a vote is given to any ballot": func(_ *world, s *sitter, _ *Reply) { s.disk.Promised = Ballot{} },
	}
	for name, breakIt := range mutants {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3000) {
				w := newWorld(seed, 5, 5, 0, true)
				w.broken = breakIt
				for range 2500 {
					w.step()
				}
				if len(w.born) > 1 {
					return
				}
			}
			t.Fatal("3000 schedules found nothing wrong")
		})
	}
}

func TestJudgeSaysWhatIsMissing(t *testing.T) {
	r := Rules{Cluster: "c", Expect: 3, Voters: 3, Self: Identity{ID: 1, Name: "a", Addr: "h1", Durable: true}, Seeds: []string{"h1", "h2", "h3"}}
	other := func(id uint64) Candidate {
		return Candidate{Identity{ID: id, Name: fmt.Sprint("n", id), Addr: fmt.Sprint("h", id), Durable: true}, r.Digest()}
	}
	require.ErrorContains(t, r.Judge(nil, time.Hour), "1 of the 3")
	require.NoError(t, r.Judge([]Candidate{other(2), other(3)}, 0), "all are in sight and this node is the first in order")
	require.ErrorContains(t, r.Judge([]Candidate{other(2), other(3), other(4)}, time.Hour), "Expect is 3")
	odd := other(2)
	odd.Digest++
	require.ErrorContains(t, r.Judge([]Candidate{odd, other(3)}, time.Hour), "n2 declares another")
	r.Self.ID = 9
	require.ErrorContains(t, r.Judge([]Candidate{other(2), other(3)}, 0), "until this node proposes")
	require.NoError(t, r.Judge([]Candidate{other(2), other(3)}, 2*time.Second))
	r.Expect, r.Self.ID = 5, 1
	a, b := other(2), other(3)
	a.Digest, b.Digest = r.Digest(), r.Digest()
	require.ErrorContains(t, r.Judge([]Candidate{a, b}, time.Second), "until this node proposes")
	require.NoError(t, r.Judge([]Candidate{a, b}, Settle))
	a.Durable = false
	require.ErrorContains(t, r.Judge([]Candidate{a, b}, time.Hour), "3 of the 5", "a node without a directory needs everybody")
	r.Expect = 0
	require.ErrorContains(t, r.Judge(nil, time.Hour), "only joins")
}

func TestLateNodesCannotFoundWithoutTheNamedOnes(t *testing.T) {
	r := Rules{Cluster: "c", Expect: 3, Voters: 1, Self: Identity{ID: 4, Addr: "h4", Durable: true}, Seeds: []string{"h1", "h2", "h3"}}
	late := []Candidate{{Identity{ID: 5, Addr: "h5", Durable: true}, r.Digest()}, {Identity{ID: 6, Addr: "h6", Durable: true}, r.Digest()}}
	require.ErrorContains(t, r.Judge(late, time.Hour), "majority of them")
	r.FoundAlone = true
	require.NoError(t, r.Judge(late, time.Hour))
}

func TestSeatsAreOddAndSpreadOverZones(t *testing.T) {
	for _, c := range []struct{ expect, voters, want int }{{1, 3, 1}, {2, 3, 1}, {3, 3, 3}, {4, 3, 3}, {5, 3, 3}, {5, 5, 5}, {4, 5, 3}} {
		r := Rules{Expect: c.expect, Voters: c.voters}
		require.Equal(t, c.want, r.Seats(), "%+v", c)
	}
	got := seat([]Identity{{ID: 1, Zone: "a", Durable: true}, {ID: 2, Zone: "a", Durable: true}, {ID: 3, Zone: "b", Durable: true}, {ID: 4, Zone: "c", Durable: true}, {ID: 5, Zone: "d"}}, 3)
	require.Equal(t, []uint64{1, 3, 4}, []uint64{got[0].ID, got[1].ID, got[2].ID})
}

func TestADecisionIsNeverOverwritten(t *testing.T) {
	g, other := &Genesis{Cluster: "c", Nonce: 1}, &Genesis{Cluster: "c", Nonce: 2}
	s, err := State{}.OnDecided(g)
	require.NoError(t, err)
	s, err = s.OnDecided(other)
	require.ErrorIs(t, err, ErrConflict)
	require.Equal(t, g, s.Decided)
	_, rep := s.OnPrepare(&Rules{Expect: 3}, Prepare{Ballot: Ballot{9, 9}})
	require.Equal(t, g, rep.Decided, "formed wins")
}
