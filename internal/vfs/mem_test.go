package vfs_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/vfs"
)

func disk(t *testing.T) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	require.NoError(t, m.MkdirAll("d"))
	return m
}

func TestACrashTakesWhatWasNotSynced(t *testing.T) {
	m := disk(t)
	f := create(t, m, "d/kept", "kept")
	require.NoError(t, f.Sync())
	require.NoError(t, m.SyncDir("d"))
	_, err := f.WriteAt([]byte("lost"), 0)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(100))
	require.NoError(t, create(t, m, "d/nameless", "synced, but its name was not").Sync())
	m.Crash()
	names, err := m.List("d")
	require.NoError(t, err)
	require.Equal(t, []string{"kept"}, names)
	require.Equal(t, "kept", read(t, m, "d/kept"))
	_, err = f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, vfs.ErrPowerLost, "the process that had it open is dead")
	require.NoError(t, f.Close())
}

func TestACrashUndoesNames(t *testing.T) {
	m := disk(t)
	for _, name := range []string{"d/a", "d/b"} {
		require.NoError(t, create(t, m, name, name).Sync())
	}
	require.NoError(t, m.SyncDir("d"))
	require.NoError(t, m.Rename("d/a", "d/b"))
	require.Equal(t, "d/a", read(t, m, "d/b"))
	m.Crash()
	require.Equal(t, "d/a", read(t, m, "d/a"))
	require.Equal(t, "d/b", read(t, m, "d/b"))
	require.NoError(t, m.Remove("d/a"))
	require.NoError(t, m.SyncDir("d"))
	m.Crash()
	names, err := m.List("d")
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, names)
}

func TestATearKeepsSomeSectorsAndSomeNames(t *testing.T) {
	sectors, names := map[int]bool{}, map[int]bool{}
	for seed := range uint64(200) {
		m := disk(t)
		f := create(t, m, "d/a", strings.Repeat("o", 3*vfs.SectorBytes))
		require.NoError(t, f.Sync())
		require.NoError(t, m.SyncDir("d"))
		_, err := f.WriteAt([]byte(strings.Repeat("n", 3*vfs.SectorBytes)), 0)
		require.NoError(t, err)
		create(t, m, "d/b", "")
		create(t, m, "d/c", "")
		m.Tear(rand.New(rand.NewPCG(seed, 0)))
		b, state := read(t, m, "d/a"), 0
		for s := range 3 {
			sector := b[s*vfs.SectorBytes : (s+1)*vfs.SectorBytes]
			require.Equal(t, vfs.SectorBytes, strings.Count(sector, sector[:1]), "a sector is whole")
			if sector[0] == 'n' {
				state |= 1 << s
			}
		}
		sectors[state] = true
		list, err := m.List("d")
		require.NoError(t, err)
		names[len(strings.Join(list, ""))] = true
	}
	require.Len(t, sectors, 8, "every subset of three sectors")
	require.Len(t, names, 3, "neither, one or both of two names")
}

func TestAfterAFailedSyncALaterOneDoesNotSave(t *testing.T) {
	m := disk(t)
	f := create(t, m, "d/a", "old")
	require.NoError(t, f.Sync())
	require.NoError(t, m.SyncDir("d"))
	_, err := f.WriteAt([]byte("new"), 0)
	require.NoError(t, err)
	broken := errors.New("input/output error")
	m.Fault(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			return broken
		}
		return nil
	})
	require.ErrorIs(t, f.Sync(), broken)
	m.Fault(nil)
	require.NoError(t, f.Sync())
	require.Equal(t, "new", read(t, m, "d/a"))
	m.Crash()
	require.Equal(t, "old", read(t, m, "d/a"))
}

func TestAFullDiskSaysSoAndServesAgain(t *testing.T) {
	m := disk(t)
	f := create(t, m, "d/a", "")
	m.Room(2*vfs.SectorBytes + 10)
	n, err := f.WriteAt(make([]byte, 3*vfs.SectorBytes), 0)
	require.True(t, vfs.IsFull(err), "%v", err)
	require.Equal(t, 2*vfs.SectorBytes, n)
	require.True(t, vfs.IsFull(f.Preallocate(4000)))
	require.EqualValues(t, 2*vfs.SectorBytes, m.Used())
	_, err = f.WriteAt(make([]byte, 2*vfs.SectorBytes), 0)
	require.NoError(t, err, "what has its room can be overwritten")
	require.NoError(t, m.Remove("d/a"))
	require.NoError(t, create(t, m, "d/b", "there is room again").Close())
}

func TestPowerCanGoAtEachOperation(t *testing.T) {
	script := func(m *vfs.Mem) error {
		f, err := m.Create("d/a")
		if err != nil {
			return err
		}
		if _, err := f.WriteAt([]byte("x"), 0); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return m.SyncDir("d")
	}
	m := disk(t)
	start := m.Count()
	require.NoError(t, script(m))
	end := m.Count()
	require.EqualValues(t, 4, end-start)
	for at := start + 1; at <= end; at++ {
		m := disk(t)
		m.HaltAt(at)
		require.ErrorIs(t, script(m), vfs.ErrPowerLost)
		_, err := m.List("d")
		require.ErrorIs(t, err, vfs.ErrPowerLost)
		m.Crash()
		names, err := m.List("d")
		require.NoError(t, err)
		require.Empty(t, names)
	}
}

func TestAHungSyncStopsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := disk(t)
		f := create(t, m, "d/a", "x")
		release := make(chan struct{})
		m.Fault(func(op vfs.Op) error {
			if op.Kind == vfs.OpSync {
				<-release
			}
			return nil
		})
		synced := make(chan error)
		go func() { synced <- f.Sync() }()
		synctest.Wait()
		require.Equal(t, "x", read(t, m, "d/a"))
		close(release)
		require.NoError(t, <-synced)
	})
}

func TestACrashFreesLocks(t *testing.T) {
	m := disk(t)
	before, err := m.Lock("d/lock")
	require.NoError(t, err)
	m.Crash()
	after, err := m.Lock("d/lock")
	require.NoError(t, err)
	require.NoError(t, before.Close(), "the dead have nothing to give back")
	_, err = m.Lock("d/lock")
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.NoError(t, after.Close())
}
