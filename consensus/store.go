package consensus

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"

	"github.com/clatter-go/clatter/internal/founding"
	"github.com/clatter-go/clatter/internal/vfs"
	"github.com/clatter-go/clatter/internal/wire"
)

// identity is what a directory must not forget: under which raft id it answers and
// what it has promised in the founding.
type identity struct {
	RaftID  uint64         `msgpack:"i"` // random; bound to this directory for all time
	Started bool           `msgpack:"s"` // a raft message may have left: without its log this id is dead
	State   founding.State `msgpack:"f"`
}

// store keeps the identity in one file, replaced as a whole: a temporary file, its
// fsync, a rename, the directory's fsync.
type store struct {
	fs   vfs.FS
	dir  string
	lock io.Closer
}

const identityFile = "identity"

// DamagedError reports a file of the directory that is not what was written.
type DamagedError struct {
	File   string
	Reason string
}

// Error names the file and what to do.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s is damaged (%s): the disk lost what this node had promised; remove the directory and start the node as a new one", e.File, e.Reason)
}

func openStore(fsys vfs.FS, dir string) (*store, error) {
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	lock, err := fsys.Lock(filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return &store{fs: fsys, dir: dir, lock: lock}, nil
}

func (s *store) close() error { return s.lock.Close() }

// load reads the identity, or makes one for an empty directory. The new one is not
// written yet: the first save is that of the first promise.
func (s *store) load() (identity, error) {
	name := filepath.Join(s.dir, identityFile)
	b, err := vfs.ReadFile(s.fs, name)
	if errors.Is(err, fs.ErrNotExist) {
		return s.fresh(), nil
	}
	if err != nil {
		return identity{}, fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) < 4 {
		return identity{}, &DamagedError{name, fmt.Sprintf("%d bytes", len(b))}
	}
	body := b[4:]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(b) {
		return identity{}, &DamagedError{name, "checksum"}
	}
	var id identity
	if err := wire.Unmarshal(body, &id); err != nil {
		return identity{}, &DamagedError{name, err.Error()}
	}
	return id, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *store) fresh() identity { return identity{RaftID: random()} }

// random returns a number that is not 0.
func random() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand
		if n := binary.BigEndian.Uint64(b[:]); n != 0 && n < 1<<63 {
			return n
		}
	}
}

// save makes id durable. After an error nothing that depends on it may be sent.
func (s *store) save(id identity) error {
	body, err := wire.Marshal(&id)
	if err != nil {
		return err
	}
	b := binary.BigEndian.AppendUint32(nil, crc32.Checksum(body, castagnoli))
	if err := vfs.WriteFile(s.fs, filepath.Join(s.dir, identityFile), append(b, body...)); err != nil {
		return fmt.Errorf("save the identity in %s: %w", s.dir, err)
	}
	return nil
}

func (s *store) logDir() string { return filepath.Join(s.dir, "raft") }

// hasLog reports whether there is anything of a log.
func (s *store) hasLog() (bool, error) {
	names, err := s.fs.List(s.logDir())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(names) > 0, err
}

// dropLog removes the log of a raft id that is dead or never spoke.
func (s *store) dropLog() error {
	dir := s.logDir()
	names, err := s.fs.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := s.fs.Remove(filepath.Join(dir, n)); err != nil {
			return err
		}
	}
	return s.fs.SyncDir(dir)
}
