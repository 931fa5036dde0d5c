package node

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/clatter-go/clatter/internal/vfs"
)

// ErrDirInUse means that another node, in this process or another, has the directory.
var ErrDirInUse = errors.New("the directory is in use by another node")

// ErrNameTaken means that the directory belongs to a node of another name.
var ErrNameTaken = errors.New("the name is taken")

// identity is what makes a node the same node at its next start.
type identity struct {
	Name string `json:"name"`
	Boot uint64 `json:"boot"` // grows with every start

	// Origin is random and made with the directory: what proves that an earlier boot is
	// gone, since the directory was locked by it. 0 without a directory.
	Origin uint64 `json:"origin"`

	fresh bool // there is no cluster in the directory, and none was begun
	again bool // a node of this name may have run before
	lock  io.Closer
}

const (
	identityFile = "node.json"
	consensusDir = "consensus" // what package consensus keeps
)

// claim takes the directory for this node and counts the start. Without a
// directory the identity is random and new.
func claim(files vfs.FS, dir, name string) (identity, error) {
	var boot [8]byte
	rand.Read(boot[:])
	if dir == "" {
		again := name != ""
		if !again {
			name = "node-" + hex.EncodeToString(boot[:4])
		}
		return identity{Name: name, Boot: freshBoot(), fresh: true, again: again, lock: io.NopCloser(nil)}, nil
	}
	if err := files.MkdirAll(dir); err != nil {
		return identity{}, fmt.Errorf("make the data directory %s: %w", dir, err)
	}
	lock, err := files.Lock(filepath.Join(dir, "LOCK"))
	if errors.Is(err, vfs.ErrLocked) {
		return identity{}, fmt.Errorf("data directory %s: %w: give each node its own", dir, ErrDirInUse)
	}
	if err != nil {
		return identity{}, fmt.Errorf("lock the data directory %s: %w", dir, err)
	}
	id, err := count(files, dir, name, hex.EncodeToString(boot[:4]))
	if err != nil {
		lock.Close()
		return identity{}, err
	}
	id.lock = lock
	return id, nil
}

// count reads who the directory belongs to and writes the next boot, durably,
// before anything of it is used.
func count(files vfs.FS, dir, name, random string) (identity, error) {
	path := filepath.Join(dir, identityFile)
	var id identity
	switch b, err := vfs.ReadFile(files, path); {
	case err == nil:
		err := json.Unmarshal(b, &id)
		if err == nil && (!nameForm.MatchString(id.Name) || id.Boot == 0 || id.Boot == 1<<64-1) {
			err = fmt.Errorf("name %q, boot %d", id.Name, id.Boot)
		}
		if err != nil {
			return id, fmt.Errorf("read %s: %w: it was written whole, so it is damaged; restore it or start with an empty directory", path, err)
		}
		id.again = true
	case !errors.Is(err, fs.ErrNotExist):
		return id, fmt.Errorf("read %s: %w", path, err)
	}
	switch {
	case id.Name == "" && name == "":
		id.Name = "node-" + random
	case id.Name == "":
		id.Name = name
	case name != "" && name != id.Name:
		return id, fmt.Errorf("data directory %s belongs to %s and Name is %s: %w: use another directory", dir, id.Name, name, ErrNameTaken)
	}
	_, err := files.Stat(filepath.Join(dir, consensusDir, "identity"))
	id.fresh = errors.Is(err, fs.ErrNotExist)
	id.Boot = max(id.Boot+1, freshBoot())
	for id.Origin == 0 {
		var b [8]byte
		rand.Read(b[:])
		id.Origin = binary.BigEndian.Uint64(b[:])
	}
	b, err := json.Marshal(id)
	if err != nil {
		return id, err
	}
	if err := vfs.WriteFile(files, path, b); err != nil {
		return id, fmt.Errorf("write %s: %w", path, err)
	}
	return id, nil
}

// secret returns the cluster's secret, and makes the file for it where that is missing.
func (c *Config) secret() ([]byte, error) {
	if c.SecretFile == "" {
		if c.Secret == "" {
			return []byte("loopback only, no secret was set"), nil
		}
		return []byte(c.Secret), nil
	}
	b, err := os.ReadFile(c.SecretFile)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = makeSecret(c.SecretFile)
	}
	if err != nil {
		return nil, &ConfigError{Field: "SecretFile", Reason: err.Error()}
	}
	s := strings.TrimSpace(string(b))
	if len(s) < 16 {
		return nil, &ConfigError{Field: "SecretFile", Reason: fmt.Sprintf("%s holds %d bytes: use 16 or more", c.SecretFile, len(s))}
	}
	return []byte(s), nil
}

// makeSecret makes the file whole or not at all: of several nodes that find it
// missing at one moment the first wins, and the others read what it wrote.
func makeSecret(path string) ([]byte, error) {
	var raw [32]byte
	rand.Read(raw[:])
	f, err := os.CreateTemp(filepath.Dir(path), ".secret-*") // mode 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(hex.EncodeToString(raw[:]) + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.ReadFile(path)
}

// freshBoot is above the boot of every earlier start of a node that keeps nothing,
// as long as the clock of its machine does not go back.
func freshBoot() uint64 { return uint64(max(time.Now().UnixMicro(), 1)) }
