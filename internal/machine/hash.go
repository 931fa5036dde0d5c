package machine

import "encoding/binary"

// chain adds an entry and what came of it to the hash.
func (m *Machine) chain(entry []byte, out *Outcome) {
	h := mixBytes(mix(m.hash, m.applied), entry)
	for i := range out.Answers {
		r := &out.Answers[i].Result
		h = mixBytes(mix(mix(mix(mix(h, uint64(r.Code)), uint64(r.Token)), uint64(r.Rev)), r.N), r.Body)
	}
	for i := range out.Events {
		e := &out.Events[i]
		h = mix(mix(mix(mix(mix(h, uint64(e.Kind)), uint64(e.Session)), e.Seq), uint64(e.Token)), uint64(e.Rev))
		h = mixBytes(mix(h, e.N), e.Body)
	}
	m.hash = h
}

// mix is one step of the hash: for a given v a bijection of h, so that no
// difference is ever lost.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return h ^ h>>32
}

func mixBytes(h uint64, b []byte) uint64 {
	h = mix(h, uint64(len(b)))
	for ; len(b) >= 8; b = b[8:] {
		h = mix(h, binary.LittleEndian.Uint64(b))
	}
	for _, c := range b {
		h = mix(h, uint64(c))
	}
	return h
}
