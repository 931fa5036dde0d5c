package workqueue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/clatter-go/clatter/consensus"
)

// lifelines are the nodes that asked for tasks of a queue and got none. Each is
// told once when there are some.
type lifelines struct {
	count atomic.Int64 // of askers: who submits looks at it without the lock

	mu     sync.Mutex // guards askers
	askers map[lifeline]struct{}
}

type lifeline struct{ queue, peer string }

// maxLifelines bounds them; who is not remembered asks again after a while.
const maxLifelines = 4096

func (e *Engine) remember(queue, peer string) {
	l := &e.lifelines
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.askers) < maxLifelines {
		l.askers[lifeline{queue, peer}] = struct{}{}
	}
	l.count.Store(int64(len(l.askers)))
}

// tellOf tells up to n of those who wait for it that an origin has tasks.
func (e *Engine) tellOf(queue, origin string, n int) {
	l := &e.lifelines
	if l.count.Load() == 0 {
		return
	}
	var told []string
	l.mu.Lock()
	for a := range l.askers {
		if len(told) < n && a.queue == queue && a.peer != origin {
			told = append(told, a.peer)
			delete(l.askers, a)
		}
	}
	l.count.Store(int64(len(l.askers)))
	l.mu.Unlock()
	m := pack(&feed{queue: queue, origin: origin})
	for _, peer := range told {
		e.run(func() {
			ctx, cancel := context.WithTimeout(e.ctx, askTimeout)
			defer cancel()
			e.peers.Call(ctx, peer, methodFeed, m) // lost news delay, they do not harm: the peer asks again after a while
		})
	}
}

// answer registers what other nodes may call.
func (e *Engine) answer() {
	e.peers.Answer(methodSteal, e.onSteal)
	e.peers.Answer(methodDone, e.onDone)
	e.peers.Answer(methodFeed, e.onFeed)
	e.peers.Answer(methodWait, e.onWait)
	e.run(e.watchPeers)
}

func (e *Engine) onSteal(_ context.Context, from string, boot uint64, req []byte) ([]byte, error) {
	var m stealRequest
	if err := unpack(req, &m); err != nil {
		return nil, err
	}
	if e.ctx.Err() != nil {
		return nil, consensus.ErrClosed
	}
	v := e.volatile(m.queue)
	if v == nil { // it may be opened here later
		if m.want > 0 {
			e.remember(m.queue, from)
		}
		return pack(&stealAnswer{start: e.start}), nil
	}
	answer := v.give(from, boot, &m)
	if answer == nil {
		return nil, fmt.Errorf("ask %d of %s is out of date", m.ask, from)
	}
	return answer, nil
}

func (e *Engine) onDone(_ context.Context, from string, _ uint64, req []byte) ([]byte, error) {
	var m report
	if err := unpack(req, &m); err != nil {
		return nil, err
	}
	if e.ctx.Err() != nil {
		return nil, consensus.ErrClosed
	}
	if v := e.volatile(m.queue); v != nil && m.start == e.start {
		v.settle(from, &m)
	}
	return nil, nil // of an engine before this one: nobody waits for it
}

func (e *Engine) onFeed(_ context.Context, _ string, _ uint64, req []byte) ([]byte, error) {
	var m feed
	if err := unpack(req, &m); err != nil {
		return nil, err
	}
	if v := e.volatile(m.queue); v != nil {
		v.fed(m.origin)
	}
	return nil, nil
}

// holdWait is how long an origin lets a waiting node wait before it has to ask again.
const holdWait = 10 * time.Second

func (e *Engine) onWait(ctx context.Context, _ string, _ uint64, req []byte) ([]byte, error) {
	var m waitRequest
	if err := unpack(req, &m); err != nil {
		return nil, err
	}
	v := e.volatile(m.queue)
	if v == nil || m.start != e.start {
		return pack(&waitAnswer{unknown: true}), nil
	}
	ctx, cancel := context.WithTimeout(ctx, holdWait)
	defer cancel()
	r, err := v.waitHere(ctx, m.number)
	if e.ctx.Err() != nil {
		return nil, consensus.ErrClosed
	}
	return pack(&waitAnswer{finished: err == nil, unknown: err != nil && ctx.Err() == nil, Result: r}), nil
}

// waitAt waits for a task of another node.
func (e *Engine) waitAt(ctx context.Context, node string, m *waitRequest) (Result, error) {
	for pause := settleAfter; ; {
		changed := e.peers.Changed()
		if !e.alive(node) {
			return Result{}, fmt.Errorf("%w: its node %s is gone", ErrNotFound, node)
		}
		call, cancel := context.WithTimeout(ctx, holdWait+askTimeout)
		raw, err := e.peers.Call(call, node, methodWait, pack(m))
		cancel()
		var a waitAnswer
		if err == nil {
			err = unpack(raw, &a)
		}
		if err == nil {
			pause = settleAfter
			switch {
			case a.finished:
				a.Value = slices.Clone(a.Value)
				return a.Result, nil
			case a.unknown:
				return Result{}, ErrNotFound
			}
		}
		timer := time.NewTimer(pause)
		if err == nil {
			timer.Reset(0)
		}
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return Result{}, context.Cause(ctx)
		case <-e.ctx.Done():
			timer.Stop()
			return Result{}, consensus.ErrClosed
		}
		timer.Stop()
		pause = min(2*pause, time.Second)
	}
}

func (e *Engine) alive(node string) bool {
	for _, p := range e.peers.List() {
		if p.Name == node {
			return p.Alive
		}
	}
	return false
}

// watchPeers tells every volatile queue what became of other nodes.
func (e *Engine) watchPeers() {
	for {
		changed := e.peers.Changed()
		peers := map[string]Peer{}
		for _, p := range e.peers.List() {
			peers[p.Name] = p
		}
		for _, v := range e.volatiles() {
			v.judgeAll(peers)
		}
		select {
		case <-changed:
		case <-e.ctx.Done():
			return
		}
	}
}

func (e *Engine) volatiles() (all []*volatile) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.benches {
		if v, ok := b.keeper.(*volatile); ok {
			all = append(all, v)
		}
	}
	return all
}

func (v *volatile) judgeAll(peers map[string]Peer) {
	v.mu.Lock()
	lanes := slices.Collect(maps.Values(v.lanes))
	v.mu.Unlock()
	for _, l := range lanes {
		p, known := peers[l.peer]
		v.judge(l, p, known)
	}
	v.thief.mu.Lock()
	origins := slices.Collect(maps.Values(v.thief.origins))
	v.thief.mu.Unlock()
	for _, o := range origins {
		p, known := peers[o.name]
		o.judge(p, known)
	}
}
