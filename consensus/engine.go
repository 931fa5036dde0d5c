package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/transport"
)

// Engine is a node's part in the consensus: the founding, a replica where the node
// is a voter, and the Client.
type Engine struct {
	cfg     Config
	store   *store
	founder *founder
	client  *Client

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	entry sync.Mutex // held while the replica is opened

	mu      sync.Mutex // guards what follows
	voter   *voter     // nil while this node has no replica
	err     error      // why the replica serves nothing any more
	said    Announcement
	changes chan struct{} // closed and replaced when voter or its office changes
}

// Start opens the directory, begins to found or to join, and returns at once: the
// Client's calls wait until there is a cluster. ctx is not kept. Handlers are
// registered on the Transport once, so that one Transport serves one Engine.
//
// A directory that was used before is checked in full: a damaged log or snapshot is
// an error here, with its file and offset, and is never served from.
func Start(ctx context.Context, cfg Config) (*Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	dir, fsys := cfg.Dir, cfg.FS
	if dir == "" {
		dir, fsys = "memory", vfs.NewMem()
	}
	if fsys == nil {
		fsys = vfs.OS()
	}
	s, err := openStore(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("start consensus: %w", err)
	}
	e := &Engine{cfg: cfg, store: s, changes: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	id, err := e.open()
	if err != nil {
		_ = s.close()
		return nil, fmt.Errorf("start consensus: %w", err)
	}
	e.founder = newFounder(e, s, id)
	e.client = newClient(e)
	e.handle()
	if err := e.enter(); err != nil {
		return nil, fmt.Errorf("start consensus: %w", errors.Join(err, e.Close()))
	}
	e.wg.Go(func() { e.live(e.ctx) })
	e.wg.Go(func() { e.client.run(e.ctx) })
	return e, nil
}

// open reads the identity. A voter whose log is gone would vote a second time in
// terms that it has forgotten: its id is dead, and the directory gets a new one
// that belongs to the same cluster without a vote (protocol 14).
func (e *Engine) open() (identity, error) {
	id, err := e.store.load()
	if err != nil || !id.Started {
		return id, err
	}
	if has, err := e.store.hasLog(); has || err != nil {
		return id, err
	}
	e.cfg.Logger.Warn("consensus: the log is gone: this node comes back under a new raft id and without a vote", "dir", e.store.dir)
	fresh := e.store.fresh()
	fresh.State.Decided = id.State.Decided
	return fresh, e.store.save(fresh)
}

func (e *Engine) handle() {
	t := e.cfg.Transport
	e.founder.handle(t)
	t.Answer(methodLeader, e.answerLeader)
	t.Handle(transport.ClassRaftCtl, e.serveRaft)
	t.Handle(transport.ClassRaftLog, e.serveRaft)
	t.Handle(transport.ClassCommand, e.serveCommands)
	t.Handle(transport.ClassWatch, e.serveWatch)
}

// live takes the node from fresh to formed, then keeps its announcement current.
func (e *Engine) live(ctx context.Context) {
	e.announce()
	if e.founder.genesis() == nil {
		e.founder.run(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err := e.enter(); err != nil {
		e.cfg.Logger.Error("consensus: this node has no replica", "err", err)
	}
	g := e.founder.genesis()
	if g.Founder == e.founder.rules.Self.ID {
		e.wg.Go(func() { e.founder.spread(ctx, g, e.campaign) })
	}
	for {
		changed := e.changed()
		e.announce()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (e *Engine) campaign() {
	if v := e.replica(); v != nil {
		v.campaign()
	}
}

// enter starts the replica of a node that has a seat. It may be called again.
func (e *Engine) enter() error {
	e.entry.Lock()
	defer e.entry.Unlock()
	g, id := e.founder.genesis(), e.founder.identity()
	e.mu.Lock()
	err, done := e.err, e.voter != nil || e.ctx.Err() != nil
	e.mu.Unlock()
	if err != nil || done || g == nil || !g.Has(id.RaftID) {
		return err
	}
	v, err := openVoter(e, g, id) // reads the whole log: not under e.mu
	if err == nil {
		if err = e.founder.started(); err != nil {
			_ = v.log.Close()
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil:
		e.err = fmt.Errorf("open the replica: %w", err)
		return e.err
	case e.ctx.Err() != nil:
		return errors.Join(ErrClosed, v.log.Close())
	}
	e.voter = v
	v.start()
	e.broadcast()
	return nil
}

// broadcast wakes those who wait for changed. e.mu is held.
func (e *Engine) broadcast() {
	close(e.changes)
	e.changes = make(chan struct{})
}

// changed returns a channel that is closed when the replica starts, wins or loses
// an election, or ends.
func (e *Engine) changed() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changes
}

func (e *Engine) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.broadcast()
}

// fail keeps the first error that ended the replica.
func (e *Engine) fail(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
		e.cfg.Logger.Error("consensus: the replica serves nothing any more", "err", err)
	}
	e.broadcast()
}

// replica returns the running replica of this node, or nil.
func (e *Engine) replica() *voter {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return nil
	}
	return e.voter
}

// Err returns why this node's replica has ended for good: a write that failed, a
// damaged log, a broken invariant. The Client still works through other voters.
func (e *Engine) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Client returns the node's way to the cluster.
func (e *Engine) Client() *Client { return e.client }

// Ready returns when the cluster is founded, a majority of its voters is connected
// and, on a voter, everything that was decided before the call is applied here. If
// ctx ends before that, the error says what is missing.
func (e *Engine) Ready(ctx context.Context) error {
	_, err := e.client.Query(ctx, &machine.Query{Kind: machine.QueryKey})
	return err
}

// Resign hands the raft leadership to the most current other voter and returns when
// this node does not lead any more. It is nil at once on a node that does not lead,
// and on the only voter.
func (e *Engine) Resign(ctx context.Context) error {
	for {
		changed := e.changed()
		v := e.replica()
		if v == nil || len(v.peers) == 0 || v.office() == nil {
			return nil
		}
		v.resign()
		timer, stop := context.WithTimeout(ctx, e.cfg.Pace.election())
		select {
		case <-changed:
		case <-timer.Done(): // raft gives a transfer up after one election timeout
		}
		stop()
		if ctx.Err() != nil {
			return fmt.Errorf("resign: %w", context.Cause(ctx))
		}
	}
}

// Close ends every call with ErrClosed, then the replica and all goroutines. What
// was acknowledged is on disk. The Transport stays open, its handlers refuse.
func (e *Engine) Close() error {
	e.mu.Lock()
	v, ended := e.voter, e.ctx.Err() != nil
	e.cancel()
	e.mu.Unlock()
	if ended {
		return nil
	}
	e.founder.close()
	e.client.close()
	var err error
	if v != nil {
		err = v.stop()
	}
	e.wg.Wait()
	return errors.Join(err, e.store.close())
}

func (e *Engine) hash() (h [hashBytes]byte) {
	if g := e.founder.genesis(); g != nil {
		h = g.Hash()
	}
	return h
}

func (e *Engine) voterNames() []string {
	g := e.founder.genesis()
	if g == nil {
		return nil
	}
	names := make([]string, 0, len(g.Voters))
	for _, v := range g.Voters {
		names = append(names, v.Name)
	}
	return names
}

func nameOf(g *founding.Genesis, id uint64) string {
	for _, v := range g.Voters {
		if v.ID == id {
			return v.Name
		}
	}
	return ""
}

// why says what a call waits for, for people.
func (e *Engine) why() string {
	if why := e.founder.why(); why != "" {
		return why
	}
	if err := e.Err(); err != nil {
		return err.Error()
	}
	return "no leader is known"
}

// announce tells gossip what this node is now.
func (e *Engine) announce() {
	a := e.founder.announcement()
	if v := e.replica(); v != nil {
		if o := v.office(); o != nil {
			a.Leader, a.Term = true, o.term
		}
	}
	e.mu.Lock()
	same := a == e.said
	e.said = a
	e.mu.Unlock()
	if !same {
		e.cfg.Roster.Announce(a)
	}
}
