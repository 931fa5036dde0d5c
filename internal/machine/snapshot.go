package machine

import "fmt"

const snapshotVersion = 1

// Encode returns the whole state. Equal states give equal bytes.
func (m *Machine) Encode() []byte {
	k := &coder{b: []byte{snapshotVersion}}
	m.fields(k)
	return k.b
}

// Restore replaces the state by one that Encode returned. After an error the state
// is what it was. The state does not alias b.
func (m *Machine) Restore(b []byte) error {
	if len(b) == 0 || b[0] != snapshotVersion {
		return fmt.Errorf("machine: snapshot of %d bytes has no known version", len(b))
	}
	fresh := New()
	k := &coder{b: b[1:], reading: true}
	fresh.fields(k)
	if k.err != nil {
		return fmt.Errorf("machine: snapshot: %w", k.err)
	}
	if err := fresh.Check(); err != nil {
		return fmt.Errorf("machine: snapshot: %w", err)
	}
	*m = *fresh
	m.wire()
	return nil
}

// Digest hashes the whole state, also what no answer and no event has shown yet.
func (m *Machine) Digest() uint64 { return mixBytes(0, m.Encode()) }

func (m *Machine) fields(k *coder) {
	k.u64(&m.applied)
	k.u64(&m.term)
	k.u64(&m.clock)
	k.i64(&m.wall)
	k.u64(&m.hash)
	k.u64((*uint64)(&m.rev))
	k.u64(&m.incarnation)
	k.u64(&m.ids)
	section(k, m.history.fields)
	for _, p := range m.parts {
		section(k, p.fields)
	}
}

// section codes a part with its length in front, so that each can gain fields at its end.
func section(k *coder, fields func(*coder)) {
	one := &coder{reading: k.reading}
	if !k.reading {
		fields(one)
		k.bytes(&one.b)
		return
	}
	if k.bytes(&one.b); k.err == nil {
		fields(one)
		k.err = one.err
	}
}
