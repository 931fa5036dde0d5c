package vfs

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// memDir is the names of one directory: those that everybody sees, those that would
// survive, and how the one became the other.
type memDir struct {
	names   map[string]*inode
	safe    map[string]*inode
	changes []change
}

// change alters the names of a directory, as a whole or not at all. On names that it
// does not find, because the change that made them was lost, it does nothing.
type change func(names map[string]*inode)

func link(name string, ino *inode) change {
	return func(names map[string]*inode) { names[name] = ino }
}

func unlink(name string) change {
	return func(names map[string]*inode) { delete(names, name) }
}

func rename(from, to string) change {
	return func(names map[string]*inode) {
		if ino := names[from]; ino != nil {
			delete(names, from)
			names[to] = ino
		}
	}
}

func newMemDir() *memDir {
	return &memDir{names: map[string]*inode{}, safe: map[string]*inode{}}
}

func (d *memDir) change(c change) {
	c(d.names)
	d.changes = append(d.changes, c)
}

func (d *memDir) sync() {
	d.safe, d.changes = maps.Clone(d.names), nil
}

// Crash is a loss of power that takes everything that was not synced. Files opened
// before return [ErrPowerLost] from now on, locks are free, the disk serves again.
func (m *Mem) Crash() { m.crash(func() bool { return false }) }

// Tear is a loss of power in the middle of things: each sector and each change of a
// name that was not synced survives or is lost as rng says.
func (m *Mem) Tear(rng *rand.Rand) { m.crash(func() bool { return rng.IntN(2) == 0 }) }

// crash decides for each change of a name and each sector whether it survives, always in
// the same order. Directories are durable from the start, as MkdirAll says.
func (m *Mem) crash(survives func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.life++
	m.halt = math.MaxUint64
	clear(m.locks)
	done := map[*inode]bool{}
	for _, path := range slices.Sorted(maps.Keys(m.dirs)) { // sorted: one rng, one outcome
		d := m.dirs[path]
		for _, c := range d.changes {
			if survives() {
				c(d.safe)
			}
		}
		d.names, d.changes = maps.Clone(d.safe), nil
		for _, name := range slices.Sorted(maps.Keys(d.names)) {
			if ino := d.names[name]; !done[ino] {
				done[ino] = true
				ino.crash(survives)
			}
		}
	}
}

// crash brings back what is durable. A size that was not synced survives only with a
// sector beyond the old one.
func (i *inode) crash(survives func() bool) {
	for _, s := range slices.Sorted(maps.Keys(i.dirty)) {
		if survives() {
			i.keep(s)
		}
	}
	clear(i.dirty)
	i.size, i.bytes = i.safeSize, slices.Clone(i.safe)
}
