package sim

import (
	"cmp"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/machine"
)

// checker is the judge: a reference machine that applies the log once more, and
// small models of what the promises mean.
type checker struct {
	w       *world
	machine *machine.Machine
	applied uint64
	term    uint64
	prints  []print // of the entries from index 2 on

	genesis *founding.Genesis
	answers map[command]machine.Result // the first one of each command
	tokens  map[string]machine.Token   // the last one of each lock
	holders map[string]command         // the Acquire that has each lock
	revs    map[string]machine.Rev
	tasks   map[machine.TaskID]*taskModel
	claims  machine.Token

	issued, counted uint64 // additions begun; the highest value answered
	swapped         map[string]machine.Rev
}

// print tells entries and states apart.
type print struct{ term, entry, hash uint64 }

// command names a command of a session for ever.
type command struct {
	session machine.SessionID
	seq     uint64
}

type taskModel struct {
	claim machine.Token     // the last one
	owner machine.SessionID // whose it is; 0 if nobody works on the task
	ended string            // how, once it is
}

func newChecker(w *world) *checker {
	return &checker{w: w, machine: machine.New(), applied: 1, answers: map[command]machine.Result{},
		tokens: map[string]machine.Token{}, holders: map[string]command{}, revs: map[string]machine.Rev{}, tasks: map[machine.TaskID]*taskModel{}, swapped: map[string]machine.Rev{}}
}

func (c *checker) founded(g *founding.Genesis) {
	if c.genesis == nil {
		c.genesis = g
	}
	if c.genesis.Hash() != g.Hash() {
		c.w.fail("F1: two clusters are founded: by %d and by %d", c.genesis.Founder, g.Founder)
	}
}

// applies judges what a node has just applied.
func (c *checker) applies(n *node, entries []*raftpb.Entry) {
	for _, e := range entries {
		c.entry(n, e)
		if c.w.err != nil {
			return
		}
	}
	at := n.machine.Applied()
	if got, want := n.machine.Hash(), c.prints[at-2].hash; got != want {
		c.w.fail("R1: node %d has hash %x at %d, not %x", n.id, got, at, want)
	}
	if at == c.applied && c.w.chance(20) && n.machine.Digest() != c.machine.Digest() {
		c.w.fail("R1: node %d has another state than the reference at %d, and the same hash", n.id, at)
	}
}

// entry compares an entry with the one that is known at its index, or takes it as
// the next of the log.
func (c *checker) entry(n *node, e *raftpb.Entry) {
	index := e.GetIndex()
	p := print{term: e.GetTerm(), entry: hashOf(e.GetData())}
	if index <= c.applied {
		if was := c.prints[index-2]; was.term != p.term || was.entry != p.entry {
			c.w.fail("W1: node %d applies another entry at %d (term %d) than the one of term %d that was applied before", n.id, index, p.term, was.term)
		}
		return
	}
	if index != c.applied+1 {
		c.w.fail("W1: node %d applies entry %d after %d", n.id, index, c.applied)
		return
	}
	out, err := c.machine.Apply(index, e.GetTerm(), e.GetData())
	if err == nil {
		err = c.machine.Check()
	}
	if err != nil {
		c.w.fail("entry %d: %w", index, err)
		return
	}
	p.hash = c.machine.Hash()
	c.prints = append(c.prints, p)
	c.applied, c.term = index, e.GetTerm()
	if len(e.GetData()) > 0 {
		c.outcome(e.GetData(), &out)
	}
}

func hashOf(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// outcome judges what an entry did.
func (c *checker) outcome(data []byte, out *machine.Outcome) {
	_, cmds, err := machine.DecodeEntry(data)
	if err != nil || len(cmds) != len(out.Answers) {
		c.w.fail("an entry of %d commands has %d answers: %w", len(cmds), len(out.Answers), err)
		return
	}
	var grants []grant
	for i, raw := range cmds {
		var cmd machine.Cmd
		if err := machine.Decode(raw, &cmd); err != nil {
			c.w.fail("a command does not decode: %w", err)
			return
		}
		if c.first(&cmd, &out.Answers[i].Result) {
			grants = append(grants, c.effect(&cmd, &out.Answers[i].Result)...)
		}
	}
	for i := range out.Events {
		switch e := &out.Events[i]; e.Kind {
		case machine.EventGranted:
			grants = append(grants, c.holds(e.Name, e.Token, command{e.Session, e.Seq}))
		case machine.EventAssigned:
			c.assigned(e)
		case machine.EventTask:
			c.ended(e)
		case machine.EventClosed:
			c.closed(e.Session)
		}
	}
	slices.SortFunc(grants, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.token, b.token))
	})
	for _, g := range grants {
		c.granted(g)
	}
}

// first reports whether an answer is that of the first copy of a command. Later
// copies have the same answer, or none that says anything (L4).
func (c *checker) first(cmd *machine.Cmd, r *machine.Result) bool {
	if cmd.Session == 0 || cmd.Seq == 0 {
		return false
	}
	if r.Code == machine.Stale || r.Code == machine.NoSession || r.Code == machine.WindowFull {
		return false
	}
	key := command{cmd.Session, cmd.Seq}
	was, seen := c.answers[key]
	if !seen {
		c.answers[key] = *r
		return true
	}
	if r.Code != machine.Cancelled && !same(&was, r) {
		c.w.fail("L4: command %d of session %x is answered %+v and then %+v", cmd.Seq, uint64(cmd.Session), was, *r)
	}
	return false
}

func same(a, b *machine.Result) bool {
	return a.Code == b.Code && a.Token == b.Token && a.Rev == b.Rev && a.N == b.N && string(a.Body) == string(b.Body)
}

// acknowledged judges an answer that reached its client.
func (c *checker) acknowledged(id machine.SessionID, seq uint64, r *machine.Result) {
	if r.Code == machine.Stale || r.Code == machine.NoSession || r.Code == machine.WindowFull || r.Code == machine.Cancelled {
		return
	}
	if was, ok := c.answers[command{id, seq}]; !ok || !same(&was, r) {
		c.w.fail("W1: command %d of session %x was answered %+v, and the log has %+v", seq, uint64(id), *r, was)
	}
}

// effect follows the first copy of a command.
func (c *checker) effect(cmd *machine.Cmd, r *machine.Result) []grant {
	if r.Code != machine.OK {
		return nil
	}
	switch cmd.Op {
	case machine.OpAcquire:
		var m machine.Acquire
		if machine.Decode(cmd.Body, &m) == nil {
			return []grant{c.holds(m.Name, r.Token, command{cmd.Session, cmd.Seq})}
		}
	case machine.OpRelease:
		var m machine.Release
		if machine.Decode(cmd.Body, &m) == nil {
			c.freed(m.Name, command{cmd.Session, m.Target})
		}
	case machine.OpCancelWait:
		var m machine.CancelWait
		if machine.Decode(cmd.Body, &m) == nil {
			c.freed(m.Name, command{cmd.Session, m.Target})
		}
	case machine.OpTxn:
		var m machine.Txn
		if machine.Decode(cmd.Body, &m) == nil {
			c.changed(&m, r.Rev)
		}
	case machine.OpSubmit:
		var m machine.SubmitAnswer
		if machine.Decode(r.Body, &m) == nil {
			for _, id := range m.IDs {
				c.tasks[id] = &taskModel{}
			}
		}
	case machine.OpFinish:
		c.finished(cmd, r)
	}
	return nil
}

func (c *checker) holds(name string, token machine.Token, who command) grant {
	c.holders[name] = who
	return grant{name, token, who}
}

func (c *checker) freed(name string, who command) {
	if c.holders[name] == who {
		delete(c.holders, name)
	}
}

// closed ends what hung on a session.
func (c *checker) closed(id machine.SessionID) {
	c.w.stats.Expired++
	for name, who := range c.holders {
		if who.session == id {
			delete(c.holders, name)
		}
	}
	for _, t := range c.tasks {
		if t.owner == id {
			t.owner = 0
		}
	}
}

// changed judges a transaction that was done: its conditions held (P1), and its
// guard was the current hold (P5).
func (c *checker) changed(m *machine.Txn, rev machine.Rev) {
	for _, g := range m.Guards {
		if c.holders[g.Name] != (command{g.Hold.Session, g.Hold.Seq}) {
			c.w.fail("P5: a write under token %d of %q is done, which %+v has", g.Token, g.Name, c.holders[g.Name])
		}
	}
	key := m.Checks[0].Key
	if c.revs[key] != m.Checks[0].Rev {
		c.w.fail("P1: %q is changed from revision %d, and was at %d", key, m.Checks[0].Rev, c.revs[key])
	}
	c.revs[key] = rev
}

// grant is a lock that went to somebody.
type grant struct {
	name  string
	token machine.Token
	to    command
}

// granted judges a change of hands: tokens are consecutive (L2), and nobody else
// believes to hold the lock (S1).
func (c *checker) granted(g grant) {
	if want := c.tokens[g.name] + 1; g.token != want {
		c.w.fail("L2: %q is granted with token %d, not %d", g.name, g.token, want)
	}
	c.tokens[g.name] = g.token
	for _, o := range c.w.clients {
		if h := o.believes(g.name); h != nil && (command{o.session.id, h.seq}) != g.to {
			c.w.fail("S1: %q is granted to session %x with token %d while client %d believes to hold it with %d for another %d us",
				g.name, uint64(g.to.session), g.token, o.at, h.token, (o.session.until-o.now())/microsecond)
		}
	}
}

// assigned judges claims: numbers that grow (T1), and nobody else at work (S1).
func (c *checker) assigned(e *machine.Event) {
	var a machine.Assignment
	if err := machine.Decode(e.Body, &a); err != nil {
		c.w.fail("an assignment does not decode: %w", err)
		return
	}
	for i := range a.Tasks {
		t := &a.Tasks[i]
		model := c.tasks[t.ID]
		if model == nil || model.ended != "" || t.Claim <= model.claim {
			c.w.fail("T2: task %d is assigned with claim %d: %+v", t.ID, t.Claim, model)
			return
		}
		model.claim, model.owner = t.Claim, e.Session
		for _, o := range c.w.clients {
			if claim := o.works(t.ID); claim != 0 && claim != t.Claim {
				c.w.fail("S1: task %d is given to session %x while client %d works on it under claim %d", t.ID, uint64(e.Session), o.at, claim)
			}
		}
	}
}

// finished judges the end of an attempt: taken under the current claim only (T1).
func (c *checker) finished(cmd *machine.Cmd, r *machine.Result) {
	var m machine.Finish
	var a machine.FinishAnswer
	if machine.Decode(cmd.Body, &m) != nil || machine.Decode(r.Body, &a) != nil {
		c.w.fail("T1: an end does not decode")
		return
	}
	for i, e := range m.Ends {
		if slices.Contains(a.Refused, uint64(i)) {
			c.w.stats.Refused++
			continue
		}
		t := c.tasks[e.ID]
		if t == nil || t.owner == 0 || t.claim != e.Claim {
			c.w.fail("T1: an end of task %d is taken under claim %d: %+v", e.ID, e.Claim, t)
			return
		}
		t.owner = 0
	}
}

// ended judges the end of a task: it is the only one (T2).
func (c *checker) ended(e *machine.Event) {
	var r machine.TaskResult
	t := c.tasks[machine.TaskID(e.N)]
	if err := machine.Decode(e.Body, &r); err != nil || t == nil || t.ended != "" {
		c.w.fail("T2: task %d ends as %q: %+v: %w", e.N, r.State, t, err)
		return
	}
	t.ended = r.State
	c.w.stats.Finished++
}

// undone counts the tasks that are not finished.
func (c *checker) undone() (n int) {
	for _, t := range c.tasks {
		if t.ended == "" {
			n++
		}
	}
	return n
}

// end judges the last state, in which everything has come to rest.
func (c *checker) end() {
	digest := c.machine.Digest()
	for _, n := range c.w.nodes {
		if n.machine.Digest() != digest {
			c.w.fail("R1: node %d ends with another state than the reference", n.id)
		}
	}
	n := c.machine.Query(&machine.Query{Kind: machine.QueryCounter, Name: "n"}).N
	if n < c.counted || n > c.issued {
		c.w.fail("L4: the counter ends at %d: %d was acknowledged, %d additions were begun", n, c.counted, c.issued)
	}
	for _, id := range slices.Sorted(maps.Keys(c.tasks)) {
		var r machine.TaskResult
		q := c.machine.Query(&machine.Query{Kind: machine.QueryTask, N: uint64(id)})
		if q.Code != machine.OK || machine.Decode(q.Body, &r) != nil || r.State != c.tasks[id].ended {
			c.w.fail("T2: task %d is %q and was %q", id, r.State, c.tasks[id].ended)
		}
	}
}
