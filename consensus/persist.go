package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/replica"
	"github.com/clatter-go/clatter/internal/wal"
)

// persister writes: all appends that queued up while the last fsync ran are one
// write and one fsync, and only then their responses go out, in order.
func (v *voter) persister(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.appends.bell:
		}
		msgs := v.appends.take()
		if len(msgs) == 0 {
			continue
		}
		responses, err := v.persist(ctx, msgs)
		if ctx.Err() != nil && err != nil {
			return
		}
		if err != nil {
			v.poison(fmt.Errorf("write the log: %w", err))
			return
		}
		v.stall.end(len(msgs))
		v.deliver(responses)
	}
}

// persist writes once. A full disk is met before anything was written: the write
// waits for space, and the watchdog meanwhile gives the leadership away.
func (v *voter) persist(ctx context.Context, msgs []*raftpb.Message) ([]*raftpb.Message, error) {
	for {
		responses, err := replica.Persist(v.log, msgs)
		var full *wal.FullError
		if !errors.As(err, &full) {
			return responses, err
		}
		v.engine.cfg.Logger.Warn("consensus: the disk is full: writes wait for space", "err", err)
		if err := pause(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// deliver brings responses of our own storage to the loop and to peers.
func (v *voter) deliver(responses []*raftpb.Message) {
	for _, m := range responses {
		if m.GetTo() == v.id {
			v.acks.put(m)
		} else {
			v.send(m)
		}
	}
}

// poison ends the replica: nothing is acknowledged any more. The loop tries to give
// the leadership away and falls silent.
func (v *voter) poison(err error) {
	v.breaking.Do(func() { close(v.broken) })
	v.hub.end()
	v.engine.fail(err)
}

// stall knows since when the disk owes an answer.
type stall struct {
	mu      sync.Mutex // guards what follows
	pending int
	since   time.Time
}

func (s *stall) begin(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == 0 {
		s.since = time.Now()
	}
	s.pending += n
}

func (s *stall) end(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending -= n
	s.since = time.Now()
}

// age is how long the oldest write has been under way, or what came after it.
func (s *stall) age() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == 0 {
		return 0
	}
	return time.Since(s.since)
}
