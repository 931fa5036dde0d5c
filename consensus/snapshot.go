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
	memorySegment   = 1 << 20 // of a log without a directory
)

// sizes of the log, in bytes.
type sizes struct {
	snapshot int64 // written since the last snapshot: the next one is due
	keep     int64 // the log is compacted whoever lags
}

var (
	onDisk   = sizes{snapshot: 64 << 20, keep: 256 << 20}
	inMemory = sizes{snapshot: 8 << 20, keep: 16 << 20} // it is the host's memory
)

func (c *Config) sizes() sizes {
	if c.Dir == "" {
		return inMemory
	}
	return onDisk
}

// snapshotter writes the machine to disk now and then, so that a restart replays
// little, and lets the log go that no voter needs.
type snapshotter struct {
	since int // entries applied since the last one; the applier's

	mu      sync.Mutex // guards what follows
	size    int64      // of the log after the last one
	running bool
	err     error
}

// consider starts a snapshot if it is time. The applier calls it: the machine
// stands still meanwhile, and is encoded here; only the writing is left to a
// goroutine of its own.
func (s *snapshotter) consider(v *voter, entries int) error {
	s.since += entries
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.since >= snapshotEntries || v.log.Bytes()-s.size >= v.engine.cfg.sizes().snapshot
	if s.err != nil || s.running || !due {
		return s.err
	}
	s.since, s.running = 0, true
	v.mu.RLock()
	index, state := v.machine.Applied(), v.machine.Encode()
	v.mu.RUnlock()
	v.wg.Go(func() {
		err := v.saveSnapshot(index, state)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running, s.err, s.size = false, err, v.log.Bytes()
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
	if len(v.peers) == 0 {
		return index
	}
	if size := v.log.Bytes(); size > v.engine.cfg.sizes().keep {
		v.engine.cfg.Logger.Warn("consensus: the log is compacted past what some voter may lack", "bytes", size)
		return index
	}
	return min(index, v.view.Load().match)
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
