package vfs_test

import (
	"bytes"
	"io"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Both file systems keep what the interface says: each claim runs on the real one and
// on the one in memory.
var claims = map[string]func(t *testing.T, fsys vfs.FS, dir string){
	"WhatIsWrittenIsRead":             whatIsWrittenIsRead,
	"ReadsPastTheEndSaySo":            readsPastTheEndSaySo,
	"AMissingFileIsNotExist":          aMissingFileIsNotExist,
	"CreateEmptiesWhatIsThere":        createEmptiesWhatIsThere,
	"PreallocatedBytesAreZero":        preallocatedBytesAreZero,
	"TruncateCutsAndExtendsWithZeros": truncateCutsAndExtendsWithZeros,
	"RenameReplaces":                  renameReplaces,
	"RenameStaysInItsDirectory":       renameStaysInItsDirectory,
	"ARemovedFileServesWhoHasItOpen":  aRemovedFileServesWhoHasItOpen,
	"ListIsSorted":                    listIsSorted,
	"MkdirAllIsIdempotent":            mkdirAllIsIdempotent,
	"StatTellsFilesFromDirectories":   statTellsFilesFromDirectories,
	"ALockExcludesUntilItIsClosed":    aLockExcludesUntilItIsClosed,
	"WriteFileReplacesAsAWhole":       writeFileReplacesAsAWhole,
	"AClosedFileRefuses":              aClosedFileRefuses,
}

func TestFileSystemsConform(t *testing.T) {
	for name, claim := range claims {
		t.Run("OS/"+name, func(t *testing.T) { claim(t, vfs.OS(), t.TempDir()) })
		t.Run("Mem/"+name, func(t *testing.T) {
			mem := vfs.NewMem()
			require.NoError(t, mem.MkdirAll("/tmp/test"))
			claim(t, mem, "/tmp/test")
		})
	}
}

func create(t *testing.T, fsys vfs.FS, name, content string) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	require.NoError(t, err)
	n, err := f.WriteAt([]byte(content), 0)
	require.NoError(t, err)
	require.Equal(t, len(content), n)
	return f
}

func read(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, err := vfs.ReadFile(fsys, name)
	require.NoError(t, err)
	return string(b)
}

func whatIsWrittenIsRead(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	f := create(t, fsys, name, "hello")
	_, err := f.WriteAt([]byte("p!"), 3)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("x"), 1000)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	b := read(t, fsys, name)
	require.Len(t, b, 1001)
	require.Equal(t, "help!\x00", b[:6])
	require.Equal(t, "\x00x", b[999:])
}

func readsPastTheEndSaySo(t *testing.T, fsys vfs.FS, dir string) {
	f := create(t, fsys, filepath.Join(dir, "a"), "hello")
	defer f.Close()
	b := make([]byte, 10)
	n, err := f.ReadAt(b, 2)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, "llo", string(b[:n]))
	n, err = f.ReadAt(b, 100)
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, n)
	_, err = f.ReadAt(b, -1)
	require.Error(t, err)
}

func aMissingFileIsNotExist(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "none")
	_, err := fsys.Open(name)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.Stat(name)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.List(name)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.Create(filepath.Join(name, "a"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = fsys.Lock(filepath.Join(name, "a"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorIs(t, fsys.Remove(name), fs.ErrNotExist)
	require.ErrorIs(t, fsys.Rename(name, name+"2"), fs.ErrNotExist)
	require.ErrorIs(t, fsys.SyncDir(name), fs.ErrNotExist)
	_, err = vfs.ReadFile(fsys, name)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func createEmptiesWhatIsThere(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	require.NoError(t, create(t, fsys, name, "hello").Close())
	f := create(t, fsys, name, "")
	defer f.Close()
	n, err := f.Size()
	require.NoError(t, err)
	require.Zero(t, n)
}

func preallocatedBytesAreZero(t *testing.T, fsys vfs.FS, dir string) {
	f := create(t, fsys, filepath.Join(dir, "a"), "hello")
	defer f.Close()
	require.NoError(t, f.Preallocate(3_000_000))
	require.NoError(t, f.Preallocate(10))
	n, err := f.Size()
	require.NoError(t, err)
	require.EqualValues(t, 3_000_000, n, "it never shortens")
	b := make([]byte, n)
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b[:5]))
	require.Equal(t, len(b)-5, bytes.Count(b[5:], []byte{0}))
}

func truncateCutsAndExtendsWithZeros(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	f := create(t, fsys, name, "hello")
	require.NoError(t, f.Truncate(2))
	require.NoError(t, f.Truncate(4))
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
	require.Equal(t, "he\x00\x00", read(t, fsys, name))
}

func renameReplaces(t *testing.T, fsys vfs.FS, dir string) {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	f := create(t, fsys, a, "new")
	defer f.Close()
	require.NoError(t, create(t, fsys, b, "old").Close())
	require.NoError(t, fsys.Rename(a, b))
	require.NoError(t, fsys.SyncDir(dir))
	require.Equal(t, "new", read(t, fsys, b))
	_, err := fsys.Open(a)
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = f.WriteAt([]byte("N"), 0)
	require.NoError(t, err, "the open file goes with its name")
	require.Equal(t, "New", read(t, fsys, b))
}

func renameStaysInItsDirectory(t *testing.T, fsys vfs.FS, dir string) {
	require.NoError(t, fsys.MkdirAll(filepath.Join(dir, "d")))
	require.NoError(t, create(t, fsys, filepath.Join(dir, "a"), "").Close())
	require.Error(t, fsys.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "d", "a")))
}

func aRemovedFileServesWhoHasItOpen(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	f := create(t, fsys, name, "hello")
	defer f.Close()
	require.NoError(t, fsys.Remove(name))
	_, err := fsys.Stat(name)
	require.ErrorIs(t, err, fs.ErrNotExist)
	b := make([]byte, 5)
	_, err = f.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, "hello", string(b))
}

func listIsSorted(t *testing.T, fsys vfs.FS, dir string) {
	for _, name := range []string{"c", "a", "b"} {
		require.NoError(t, create(t, fsys, filepath.Join(dir, name), "").Close())
	}
	require.NoError(t, fsys.MkdirAll(filepath.Join(dir, "aa", "deep")))
	names, err := fsys.List(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "aa", "b", "c"}, names)
}

func mkdirAllIsIdempotent(t *testing.T, fsys vfs.FS, dir string) {
	deep := filepath.Join(dir, "x", "y", "z")
	require.NoError(t, fsys.MkdirAll(deep))
	require.NoError(t, fsys.MkdirAll(deep))
	require.NoError(t, create(t, fsys, filepath.Join(deep, "a"), "").Close())
	require.Error(t, fsys.MkdirAll(filepath.Join(deep, "a", "b")), "a file is in the way")
	require.Error(t, fsys.Remove(filepath.Join(dir, "x")), "it is not empty")
}

func statTellsFilesFromDirectories(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	require.NoError(t, create(t, fsys, name, "hello").Close())
	info, err := fsys.Stat(name)
	require.NoError(t, err)
	require.Equal(t, vfs.Info{Bytes: 5}, info)
	info, err = fsys.Stat(dir)
	require.NoError(t, err)
	require.True(t, info.Dir)
	_, err = fsys.Open(dir)
	require.Error(t, err)
}

func aLockExcludesUntilItIsClosed(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "lock")
	l, err := fsys.Lock(name)
	require.NoError(t, err)
	_, err = fsys.Lock(name)
	require.ErrorIs(t, err, vfs.ErrLocked)
	require.NoError(t, l.Close())
	l, err = fsys.Lock(name)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	info, err := fsys.Stat(name)
	require.NoError(t, err)
	require.Equal(t, vfs.Info{}, info)
}

func writeFileReplacesAsAWhole(t *testing.T, fsys vfs.FS, dir string) {
	name := filepath.Join(dir, "a")
	require.NoError(t, vfs.WriteFile(fsys, name, []byte("a long first version")))
	require.NoError(t, vfs.WriteFile(fsys, name, []byte("short")))
	require.Equal(t, "short", read(t, fsys, name))
	names, err := fsys.List(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
}

func aClosedFileRefuses(t *testing.T, fsys vfs.FS, dir string) {
	f := create(t, fsys, filepath.Join(dir, "a"), "hello")
	require.NoError(t, f.Close())
	_, err := f.WriteAt([]byte("x"), 0)
	require.ErrorIs(t, err, fs.ErrClosed)
	_, err = f.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, fs.ErrClosed)
	require.Error(t, f.Sync())
	require.ErrorIs(t, f.Close(), fs.ErrClosed)
}
