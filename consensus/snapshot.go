package consensus

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/wal"
)

const (
	snapshotEntries = 10_000
	snapshotBytes   = 64 << 20
	keepBytes       = 256 << 20 // beyond it the log is compacted whoever lags
	memorySegment   = 1 << 20   // of a log without a directory, which costs the host's memory
)

// snapshotter writes the machine to disk now and then, so that a restart replays
// little, and lets the log go that no voter needs.
type snapshotter struct {
	since int // entries applied since the last one
	size  int64

	mu      sync.Mutex // guards what follows
	running bool
	err     error
}

// consider starts a snapshot if it is time. The applier calls it: the machine
// stands still meanwhile, and is encoded here; only the writing is left to a
// goroutine of its own.
func (s *snapshotter) consider(v *voter, entries int) error {
	s.since += entries
	bytes := v.log.Bytes()
	if s.since < snapshotEntries && bytes-s.size < snapshotBytes {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running || s.err != nil {
		return s.err
	}
	s.since, s.size, s.running = 0, bytes, true
	v.mu.RLock()
	index, state := v.machine.Applied(), v.machine.Encode()
	v.mu.RUnlock()
	v.wg.Go(func() {
		err := v.saveSnapshot(index, state)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running, s.err = false, err
	})
	return nil
}

func (v *voter) saveSnapshot(index uint64, state []byte) error {
	err := v.log.SaveSnapshot(index, v.conf.Load(), func(w io.Writer) error {
		_, err := w.Write(state)
		return err
	})
	var full *wal.FullError
	if errors.As(err, &full) {
		v.engine.cfg.Logger.Warn("consensus: no room for a snapshot", "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("save the snapshot at %d: %w", index, err)
	}
	if to := v.compactable(index); to > 0 {
		if err := v.log.Compact(to); err != nil {
			return fmt.Errorf("compact the log to %d: %w", to, err)
		}
	}
	return nil
}

// compactable returns how far the log may be let go. Only the leader knows what
// the others lack; a follower keeps the log, because it may have to serve the
// slowest of them tomorrow.
func (v *voter) compactable(index uint64) uint64 {
	if v.log.Bytes() > keepBytes || len(v.peers) == 0 {
		return index
	}
	view := v.view.Load()
	if !view.elected || len(view.lag) < len(v.peers) {
		return 0
	}
	last, err := v.log.LastIndex()
	if err != nil {
		return 0
	}
	for _, lag := range view.lag {
		index = min(index, last-min(last, lag))
	}
	return index
}

// openLog opens the log and restores the machine from the newest snapshot. A log
// that never spoke is made anew: its predecessor may be cut short.
func (v *voter) openLog(id identity) error {
	opts := wal.Options{FS: v.engine.store.fs, Dir: v.engine.store.logDir(), Cluster: v.hash, RaftID: v.id, Logger: v.engine.cfg.Logger}
	if v.engine.cfg.Dir == "" {
		opts.SegmentBytes = memorySegment
	}
	log, err := wal.Open(opts)
	if err != nil && !id.Started {
		if err := v.engine.store.dropLog(); err != nil {
			return err
		}
		log, err = wal.Create(opts, v.conf.Load())
	}
	if err != nil {
		return err
	}
	v.log, v.machine = log, machine.New()
	if err := v.restore(); err != nil {
		_ = log.Close()
		return err
	}
	return nil
}

func (v *voter) restore() error {
	meta, r, err := v.log.OpenSnapshot()
	if err != nil {
		return err
	}
	defer r.Close()
	state, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if len(state) > 0 {
		if err := v.machine.Restore(state); err != nil {
			return fmt.Errorf("restore the snapshot at %d: %w", meta.GetIndex(), err)
		}
	}
	v.applied.Store(meta.GetIndex())
	return nil
}
