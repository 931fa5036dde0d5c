package session

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/internal/machine"
)

// fake is a cluster of one machine without a network. Tests come between a command
// and its answer, and between an event and its owner.
type fake struct {
	began time.Time

	mu     sync.Mutex // guards what follows
	m      *machine.Machine
	index  uint64
	before func(ctx context.Context, cmd machine.Cmd) error // refuses or delays a command
	after  func(ctx context.Context, cmd machine.Cmd) error // loses or delays an answer
	notice func(machine.Event) bool                         // false loses an event
	routes map[machine.SessionID]func(machine.Event)
	sent   map[machine.Op]int
}

func newFake() *fake {
	return &fake{
		began: time.Now(), m: machine.New(), routes: map[machine.SessionID]func(machine.Event){}, sent: map[machine.Op]int{},
		before: func(context.Context, machine.Cmd) error { return nil },
		after:  func(context.Context, machine.Cmd) error { return nil },
		notice: func(machine.Event) bool { return true },
	}
}

// keeper is a node of the fake cluster.
func (f *fake) keeper(t *testing.T, node string, ttl time.Duration) *Keeper {
	k := NewKeeper(f, node, 1, 1, ttl, time.Second, slog.New(slog.DiscardHandler))
	t.Cleanup(k.Close)
	return k
}

func (f *fake) Do(ctx context.Context, cmd machine.Cmd) (machine.Result, error) {
	f.mu.Lock()
	f.sent[cmd.Op]++
	before, after := f.before, f.after
	f.mu.Unlock()
	if err := before(ctx, cmd); err != nil {
		return machine.Result{}, err
	}
	res := f.apply(cmd)
	return res, after(ctx, cmd)
}

// apply puts the command in the log, behind an Expire of what is overdue.
func (f *fake) apply(cmd machine.Cmd) machine.Result {
	expire := machine.Cmd{Op: machine.OpExpire, Body: machine.Encode(&machine.Expire{Limit: 100})}
	f.mu.Lock()
	f.index++
	stamp := machine.Stamp{Number: f.index, Clock: uint64(time.Since(f.began)) + 1}
	out, err := f.m.Apply(f.index, 1, machine.AppendEntry(nil, stamp, [][]byte{machine.Encode(&expire), machine.Encode(&cmd)}))
	routes, notice := f.routes, f.notice
	f.mu.Unlock()
	if err != nil {
		panic(err)
	}
	for _, e := range out.Events {
		f.mu.Lock()
		fn := routes[e.Session]
		f.mu.Unlock()
		if fn != nil && notice(e) {
			fn(e)
		}
	}
	return out.Answers[1].Result
}

func (f *fake) Query(_ context.Context, q *machine.Query) (machine.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m.Query(q), nil
}

func (f *fake) Watch(context.Context, machine.Topic, string, machine.Rev) iter.Seq2[consensus.Update, error] {
	return nil
}

func (f *fake) Route(id machine.SessionID, fn func(machine.Event)) (stop func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.routes[id] = fn
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.routes, id)
	}
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) count(op machine.Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[op]
}

func (f *fake) open(s *Session) bool {
	res, _ := f.Query(nil, &machine.Query{Kind: machine.QuerySession, Session: s.id})
	return res.Code == machine.OK
}

// line asks for the lock "m" and returns the sequence and, unless it was granted, who waits.
func line(t *testing.T, s *Session) (seq uint64, granted <-chan machine.Event) {
	seq = s.Sequence()
	granted, _ = s.Await(seq, machine.SpaceLock, "m")
	_, err := s.DoAt(t.Context(), seq, machine.OpAcquire, &machine.Acquire{Space: machine.SpaceLock, Name: "m"})
	require.NoError(t, err)
	return seq, granted
}

func release(t *testing.T, s *Session, seq uint64, token machine.Token) {
	_, err := s.Do(t.Context(), machine.OpRelease, &machine.Release{Space: machine.SpaceLock, Name: "m", Target: seq, Token: token})
	require.NoError(t, err)
}
