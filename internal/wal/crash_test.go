package wal

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/clatter-go/clatter/internal/vfs"
)

// step is one call that is acknowledged as a whole.
type step func(l *Log) error

// script uses every part of the log: segments that end, suffixes that are replaced,
// frames larger than a segment, snapshots, compaction, recycled segments.
func script() (steps []step) {
	add := func(s step) { steps = append(steps, s) }
	put := func(h *raftpb.HardState, first, last, term uint64, size int) {
		add(func(l *Log) error { return l.Append(h, entries(first, last, term, size), true) })
	}
	snapshot := func(index uint64, size int) {
		add(func(l *Log) error {
			return l.SaveSnapshot(index, voters, func(w io.Writer) error {
				_, err := io.WriteString(w, strings.Repeat(fmt.Sprintf("state after %d. ", index), size))
				return err
			})
		})
		add(func(l *Log) error { return l.Compact(index) })
	}
	put(hard(2, 7, 1), 2, 3, 2, 100)
	put(nil, 4, 8, 2, 200)
	put(hard(3, 9, 4), 6, 6, 3, 900)
	add(func(l *Log) error { return l.Append(hard(4, 7, 4), nil, true) })
	put(hard(4, 7, 6), 7, 12, 4, 300)
	snapshot(6, 3)
	put(nil, 13, 13, 4, 5000)
	put(nil, 14, 20, 4, 150)
	put(hard(5, 8, 13), 18, 22, 5, 250)
	snapshot(13, 100)
	for i := uint64(23); i < 29; i++ {
		put(hard(5, 8, i-1), i, i, 5, 700)
	}
	snapshot(27, 10)
	put(nil, 29, 29, 5, 10)
	return steps
}

func scripted(fsys vfs.FS) Options {
	o := options(fsys)
	o.SegmentBytes, o.TailBytes = 2<<10, 1<<10
	return o
}

// reference runs the script undisturbed and returns the content after each step, the
// first after Create, and how many operations each state took.
func reference(t *testing.T) (states []content, counts []uint64) {
	t.Helper()
	mem := vfs.NewMem()
	l := created(t, scripted(mem))
	states, counts = append(states, contentOf(t, l)), append(counts, mem.Count())
	for _, s := range script() {
		require.NoError(t, s(l))
		states, counts = append(states, contentOf(t, l)), append(counts, mem.Count())
	}
	return states, counts
}

// play runs the script until a step fails and returns how many states were reached.
func play(o Options) (reached int, l *Log, err error) {
	l, err = Create(o, voters)
	if err != nil {
		return 0, nil, err
	}
	for i, s := range script() {
		if err := s(l); err != nil {
			return i + 1, l, err
		}
	}
	return len(script()) + 1, l, nil
}

// trimmed forgets entries up to base: an interrupted compaction may have gone less far.
func (c content) trimmed(base uint64) content {
	if base > c.base {
		c.entries, c.base, c.baseTerm = c.entries[base-c.base:], base, 0
	}
	return c
}

// requireOneOf wants the state that was acknowledged last, or the one that was on its way.
func requireOneOf(t *testing.T, got content, states []content, reached int, msg string) {
	t.Helper()
	for _, want := range states[max(reached-1, 0):min(reached+1, len(states))] {
		base := max(want.base, got.base)
		a, b := got.trimmed(base), want.trimmed(base)
		if a.baseTerm == 0 || b.baseTerm == 0 {
			a.baseTerm, b.baseTerm = 0, 0
		}
		if equal(a, b) {
			return
		}
	}
	require.Fail(t, "neither what was acknowledged nor what was on its way", "%s, after %d states: %v", msg, reached, got)
}

// losses are the ways in which power can go.
func losses() map[string]func(*vfs.Mem) {
	all := map[string]func(*vfs.Mem){"crash": (*vfs.Mem).Crash, "kill": func(m *vfs.Mem) { m.HaltAt(1 << 60) }}
	for seed := range uint64(6) {
		all[fmt.Sprintf("tear %d", seed)] = func(m *vfs.Mem) { m.Tear(rand.New(rand.NewPCG(seed, 1))) }
	}
	return all
}

func TestPowerLostAtAnyOperationLosesNothingAcknowledged(t *testing.T) {
	states, counts := reference(t)
	end := counts[len(counts)-1]
	t.Logf("%d operations", end)
	for at := uint64(1); at <= end+1; at++ {
		for kind, lose := range losses() {
			mem := vfs.NewMem()
			mem.HaltAt(at)
			reached, _, err := play(scripted(mem))
			require.Equal(t, at <= end, err != nil)
			lose(mem)
			msg := fmt.Sprintf("%s at %d", kind, at)
			l, err := Open(scripted(mem))
			if errors.Is(err, ErrNotFound) {
				require.Zero(t, reached, msg)
				l, err = Create(scripted(mem), voters)
			}
			require.NoError(t, err, msg)
			c := contentOf(t, l)
			requireOneOf(t, c, states, reached, msg)
			last := c.base + uint64(len(c.entries))
			require.NoError(t, l.Append(hard(9, 9, last), entries(last+1, last+3, 9, 900), true))
			c = contentOf(t, l)
			lose(mem)
			require.Equal(t, c, contentOf(t, opened(t, scripted(mem))), msg)
		}
	}
}

func TestPowerLostWhileOpeningLosesNothingEither(t *testing.T) {
	states, counts := reference(t)
	for at := counts[0] + 3; at < counts[len(counts)-1]; at += 3 {
		for again := uint64(1); again < 12; again++ {
			mem := vfs.NewMem()
			mem.HaltAt(at)
			reached, _, err := play(scripted(mem))
			require.ErrorIs(t, err, vfs.ErrPowerLost)
			rng := rand.New(rand.NewPCG(at, again))
			mem.Tear(rng)
			mem.HaltAt(mem.Count() + again)
			_, err = Open(scripted(mem))
			mem.Tear(rng)
			l := opened(t, scripted(mem))
			requireOneOf(t, contentOf(t, l), states, reached, fmt.Sprintf("%d, then %d", at, again))
			if err == nil {
				break // it opened before the power went
			}
		}
	}
}

var errIO = errors.New("input/output error")

// After a failed sync the pages count as clean: what a new opening reads may not be on
// disk, and must be by the time it is relied on.
func TestAFailedOperationPoisonsAndOpeningAgainIsSafe(t *testing.T) {
	states, counts := reference(t)
	poisoned := 0
	for at := counts[0] + 1; at <= counts[len(counts)-1]; at++ {
		mem := vfs.NewMem()
		mem.Fault(func(op vfs.Op) error {
			if op.Count == at {
				return errIO
			}
			return nil
		})
		reached, l, err := play(scripted(mem))
		require.Equal(t, reached <= len(script()), err != nil)
		if errors.Is(err, ErrPoisoned) {
			poisoned++
			require.ErrorIs(t, err, errIO)
			last, err := l.LastIndex()
			require.NoError(t, err)
			count := mem.Count()
			require.ErrorIs(t, l.Append(nil, entries(last+1, last+1, 5, 1), true), ErrPoisoned)
			require.ErrorIs(t, l.Append(hard(9, 9, 1), nil, false), ErrPoisoned)
			require.ErrorIs(t, l.SaveSnapshot(last, voters, nothing), ErrPoisoned)
			require.ErrorIs(t, l.Compact(last), ErrPoisoned)
			require.Equal(t, count, mem.Count(), "nothing is written any more")
		}
		require.NoError(t, l.Close())
		l = opened(t, scripted(mem))
		c := contentOf(t, l)
		requireOneOf(t, c, states, reached, fmt.Sprintf("error at %d", at))
		mem.Crash()
		require.Equal(t, c, contentOf(t, opened(t, scripted(mem))), "what was read was durable, error at %d", at)
	}
	require.Greater(t, poisoned, len(script()))
}

func TestTheFirstErrorOfAWriteOrASyncPoisons(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpWrite, vfs.OpSync} {
		mem := vfs.NewMem()
		l := created(t, options(mem))
		once := true
		mem.Fault(func(op vfs.Op) error {
			if op.Kind == kind && once {
				once = false
				return syscall.ENOSPC // even that: reserved room must not run out
			}
			return nil
		})
		err := l.Append(nil, entries(2, 2, 1, 10), true)
		require.ErrorIs(t, err, ErrPoisoned)
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, segmentName(1))
		require.Equal(t, err, l.Append(nil, entries(2, 2, 1, 10), true))
		last, err := l.LastIndex()
		require.NoError(t, err)
		require.EqualValues(t, 1, last)
	}
}

func TestAFullDiskIsMetBeforeAnythingIsWrittenAndTheLogGoesOn(t *testing.T) {
	states, _ := reference(t)
	met := 0
	for room := int64(1 << 10); room < 20<<10; room += 300 {
		mem := vfs.NewMem()
		l := created(t, scripted(mem))
		mem.Room(room)
		for i, s := range script() {
			before := contentOf(t, l)
			err := s(l)
			for more := int64(1000); err != nil; more += 1000 {
				met++
				var full *FullError
				require.ErrorAs(t, err, &full)
				require.ErrorIs(t, err, syscall.ENOSPC)
				require.Equal(t, before, contentOf(t, l))
				mem.Room(max(room, mem.Used()) + more)
				err = s(l)
			}
			require.Equal(t, states[i+1], contentOf(t, l))
			mem.Room(room)
		}
		require.NoError(t, l.Close())
		require.Equal(t, states[len(states)-1], contentOf(t, opened(t, scripted(mem))))
	}
	require.Greater(t, met, 100)
}

func TestAHungDiskLeavesReadersAlone(t *testing.T) {
	mem := vfs.NewMem()
	l := created(t, options(mem))
	require.NoError(t, l.Append(hard(2, 8, 1), entries(2, 9, 2, 10), true))
	hung, release := make(chan struct{}), make(chan struct{})
	mem.Fault(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			close(hung)
			<-release
		}
		return nil
	})
	done := make(chan error)
	go func() { done <- l.Append(nil, entries(10, 10, 2, 10), true) }()
	<-hung
	ents, err := l.Entries(2, 10, 1<<20)
	require.NoError(t, err)
	require.Len(t, ents, 8)
	last, err := l.LastIndex()
	require.NoError(t, err)
	require.EqualValues(t, 9, last, "what is not durable is not there")
	_, _, err = l.InitialState()
	require.NoError(t, err)
	close(release)
	require.NoError(t, <-done)
}
