package consensus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

const (
	methodPrepare = "founding/prepare"
	methodAccept  = "founding/accept"
	methodDecided = "founding/decided"
	methodGenesis = "founding/genesis"

	askTimeout = time.Second
)

// founder drives the founding: it answers as an acceptor, proposes when the rules
// say so, and learns the decision. Every State is on disk before its answer leaves.
type founder struct {
	engine *Engine
	store  *store
	rules  founding.Rules // Seeds are read anew for each judgement

	decided chan struct{} // closed once there is a genesis

	mu     sync.Mutex // guards what follows, and orders the writes of the store
	id     identity
	lacks  error           // what Judge said last
	high   founding.Ballot // highest ballot that others told of
	broken error           // the store failed: no answers any more
}

func newFounder(e *Engine, s *store, id identity) *founder {
	f := &founder{engine: e, store: s, id: id, decided: make(chan struct{})}
	cfg := &e.cfg
	f.rules = founding.Rules{
		Cluster: cfg.Cluster, Expect: cfg.Expect, Voters: cfg.Voters, FoundAlone: cfg.FoundAlone,
		Self: founding.Identity{ID: id.RaftID, Name: cfg.Name, Addr: cfg.Transport.Self().Addr.String(), Zone: cfg.Zone, Durable: cfg.Dir != ""},
	}
	if cfg.NonVoter {
		f.rules.Expect = 0
	}
	if id.State.Decided != nil {
		close(f.decided)
	}
	return f
}

// handle registers the acceptor.
func (f *founder) handle(t *transport.Transport) {
	t.Answer(methodPrepare, func(_ context.Context, _ transport.Peer, req []byte) ([]byte, error) {
		var m founding.Prepare
		if err := wire.Unmarshal(req, &m); err != nil {
			return nil, err
		}
		return f.reply(func(s founding.State) (founding.State, founding.Reply) { return s.OnPrepare(&f.rules, m) })
	})
	t.Answer(methodAccept, func(_ context.Context, _ transport.Peer, req []byte) ([]byte, error) {
		var m founding.Accept
		if err := wire.Unmarshal(req, &m); err != nil {
			return nil, err
		}
		return f.reply(func(s founding.State) (founding.State, founding.Reply) { return s.OnAccept(&f.rules, m) })
	})
	t.Answer(methodDecided, func(_ context.Context, _ transport.Peer, req []byte) ([]byte, error) {
		var g founding.Genesis
		if err := wire.Unmarshal(req, &g); err != nil {
			return nil, err
		}
		if err := f.learn(&g); err != nil {
			return nil, err
		}
		return nil, f.engine.enter()
	})
	t.Answer(methodGenesis, func(context.Context, transport.Peer, []byte) ([]byte, error) {
		g := f.genesis()
		if g == nil {
			return nil, &transport.RemoteError{Code: transport.NotFound, Message: "no cluster is founded here"}
		}
		return wire.Marshal(g)
	})
}

func (f *founder) reply(step func(founding.State) (founding.State, founding.Reply)) ([]byte, error) {
	rep, err := f.answer(step)
	if err != nil {
		return nil, err
	}
	return wire.Marshal(&rep)
}

// answer takes one step of the acceptor. An error of the disk means no answer:
// what is not written was not promised.
func (f *founder) answer(step func(founding.State) (founding.State, founding.Reply)) (founding.Reply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	next, rep := step(f.id.State)
	if err := f.write(next); err != nil {
		return founding.Reply{}, err
	}
	return rep, nil
}

// write makes next the state if it differs. f.mu is held.
func (f *founder) write(next founding.State) error {
	if f.broken != nil {
		return f.broken
	}
	if next == f.id.State {
		return nil
	}
	id := f.id
	id.State = next
	if err := f.store.save(id); err != nil {
		f.broken = err
		return err
	}
	f.id = id
	return nil
}

func (f *founder) learn(g *founding.Genesis) error {
	if g == nil || len(g.Voters) == 0 || g.Cluster != f.rules.Cluster {
		return fmt.Errorf("learn a genesis: %w: it is not of the cluster %q", ErrInvalid, f.rules.Cluster)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id.State.Decided != nil {
		_, err := f.id.State.OnDecided(g)
		return err
	}
	next, err := f.id.State.OnDecided(g)
	if err == nil {
		err = f.write(next)
	}
	if err == nil {
		close(f.decided)
	}
	return err
}

// close ends the answers: the store belongs to the next start now.
func (f *founder) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = ErrClosed
}

func (f *founder) genesis() *founding.Genesis {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.id.State.Decided
}

func (f *founder) identity() identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.id
}

// started notes that raft messages may leave from now on (protocol 14).
func (f *founder) started() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.id.Started || f.broken != nil {
		return f.broken
	}
	id := f.id
	id.Started = true
	if err := f.store.save(id); err != nil {
		return err
	}
	f.id = id
	return nil
}

// why says what the founding lacks, for people.
func (f *founder) why() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.broken != nil:
		return f.broken.Error()
	case f.id.State.Decided == nil && f.lacks != nil:
		return f.lacks.Error()
	}
	return ""
}

// run founds or finds a cluster and returns when there is one, or when ctx ends.
func (f *founder) run(ctx context.Context) {
	var view []founding.Candidate
	since := time.Now()
	for {
		changed := f.engine.cfg.Roster.Changed()
		now := f.candidates()
		if !slices.Equal(now, view) {
			view, since = now, time.Now()
		}
		if f.find(ctx) || f.judge(view, time.Since(since)) == nil && f.propose(ctx, view) {
			return
		}
		look := time.NewTimer(50*time.Millisecond + rand.N(50*time.Millisecond))
		select {
		case <-ctx.Done():
		case <-f.decided:
		case <-changed:
		case <-look.C:
		}
		look.Stop()
		if ctx.Err() != nil || f.genesis() != nil {
			return
		}
	}
}

func (f *founder) judge(view []founding.Candidate, unchanged time.Duration) error {
	r := f.rules
	r.Seeds = f.seeds()
	err := r.Judge(view, unchanged)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lacks = err
	return err
}

func (f *founder) seeds() []string {
	var all []string
	for _, a := range f.engine.cfg.Roster.Seeds() {
		all = append(all, a.String())
	}
	return all
}

// candidates returns the fresh nodes in sight, by id. Dead ones count until gossip
// forgets them: they may have promised.
func (f *founder) candidates() []founding.Candidate {
	var all []founding.Candidate
	for _, p := range f.engine.cfg.Roster.Peers() {
		if !p.Eligible || p.Phase != PhaseFresh || p.RaftID == 0 {
			continue
		}
		all = append(all, founding.Candidate{Digest: p.Digest, Identity: founding.Identity{
			ID: p.RaftID, Name: p.Name, Addr: p.Addr.String(), Durable: !p.NoDir}})
	}
	slices.SortFunc(all, func(a, b founding.Candidate) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return all
}

// find asks a node that belongs to a cluster for its genesis: formed wins.
func (f *founder) find(ctx context.Context) bool {
	for _, p := range f.engine.cfg.Roster.Peers() {
		if p.Phase != PhaseFormed || p.Dead {
			continue
		}
		b, err := f.call(ctx, p.Name, methodGenesis, nil)
		if err != nil {
			continue
		}
		var g founding.Genesis
		if wire.Unmarshal(b, &g) == nil && f.learn(&g) == nil {
			return true
		}
	}
	return false
}

func (f *founder) call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return f.engine.cfg.Transport.Call(ctx, to, method, req)
}

// propose is one round of both phases. It reports whether there is a decision.
func (f *founder) propose(ctx context.Context, view []founding.Candidate) bool {
	rules := f.rules
	rules.Seeds = f.seeds()
	f.mu.Lock()
	round := founding.Begin(&rules, f.id.State, f.high, random())
	f.mu.Unlock()
	prepare := round.Prepare()
	var accept *founding.Accept
	for rep := range f.ask(ctx, view, methodPrepare, &prepare, func(s founding.State) (founding.State, founding.Reply) {
		return s.OnPrepare(&rules, prepare)
	}) {
		if accept == nil {
			accept = round.OnPromise(rep)
		}
	}
	if accept == nil {
		return f.genesis() != nil
	}
	var g *founding.Genesis
	for rep := range f.ask(ctx, view, methodAccept, accept, func(s founding.State) (founding.State, founding.Reply) {
		return s.OnAccept(&rules, *accept)
	}) {
		if g == nil {
			g = round.OnVote(rep)
		}
	}
	if g == nil {
		return f.genesis() != nil
	}
	if err := f.learn(g); err != nil {
		f.engine.cfg.Logger.Error("consensus: the decided genesis is not kept", "err", err)
		return false
	}
	return true
}

// ask sends a question to this node's acceptor and to every candidate, and yields
// the answers as they come. Those of a node that says to be another are dropped.
func (f *founder) ask(ctx context.Context, view []founding.Candidate, method string, m any, self func(founding.State) (founding.State, founding.Reply)) func(func(founding.Reply) bool) {
	return func(yield func(founding.Reply) bool) {
		req, err := wire.Marshal(m)
		if err != nil {
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		answers := make(chan founding.Reply, len(view)+1)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		for _, c := range view {
			wg.Go(func() {
				rep, err := f.askOne(ctx, c.Name, method, req)
				if err != nil {
					f.engine.cfg.Logger.Debug("consensus: no answer to a founding", "peer", c.Name, "method", method, "err", err)
				}
				answers <- rep
			})
		}
		if rep, err := f.answer(self); err == nil && !yield(rep) {
			return
		}
		for range view {
			rep := <-answers
			f.note(rep)
			if rep.From.ID != 0 && !yield(rep) {
				return
			}
		}
	}
}

func (f *founder) askOne(ctx context.Context, name, method string, req []byte) (founding.Reply, error) {
	var rep founding.Reply
	b, err := f.call(ctx, name, method, req)
	if err == nil {
		err = wire.Unmarshal(b, &rep)
	}
	if err == nil && rep.From.Name != name {
		err = fmt.Errorf("%s answers as %q", name, rep.From.Name)
	}
	if err != nil {
		return founding.Reply{}, err
	}
	return rep, nil
}

// note keeps what an answer tells beside its vote.
func (f *founder) note(rep founding.Reply) {
	if rep.Decided != nil {
		if err := f.learn(rep.Decided); errors.Is(err, founding.ErrConflict) {
			f.engine.cfg.Logger.Error("consensus: two clusters were founded", "peer", rep.From.Name, "err", err)
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.high.Round < rep.Promised.Round {
		f.high = rep.Promised
	}
}

// spread tells every voter of the decision. It calls ready as soon as a majority of
// them runs: their votes are what the first election needs. It ends when all have
// answered or ctx ends.
func (f *founder) spread(ctx context.Context, g *founding.Genesis, ready func()) {
	req, err := wire.Marshal(g)
	if err != nil {
		return
	}
	told := make(chan bool, len(g.Voters))
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, v := range g.Voters {
		wg.Go(func() {
			if v.ID == f.rules.Self.ID {
				told <- true
				return
			}
			_, err := f.call(ctx, v.Name, methodDecided, req)
			told <- err == nil
		})
	}
	up := 0
	for range g.Voters {
		if <-told {
			up++
		}
		if up == len(g.Voters)/2+1 {
			up = len(g.Voters) + 1 // once
			ready()
		}
	}
}

// announcement is what gossip tells of this node's place in the cluster.
func (f *founder) announcement() Announcement {
	id := f.identity()
	a := Announcement{RaftID: id.RaftID, NoDir: f.engine.cfg.Dir == "", Digest: f.rules.Digest(), Eligible: f.rules.Expect > 0}
	if g := id.State.Decided; g != nil {
		h := g.Hash()
		a.Phase, a.Cluster, a.Voter = PhaseFormed, binary.BigEndian.Uint64(h[:8]), g.Has(id.RaftID)
	}
	return a
}
