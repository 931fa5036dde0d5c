package founding

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Identity is a node that may take part in a founding. A wiped directory is a new
// identity, because its raft id is new.
type Identity struct {
	ID      uint64 `msgpack:"i"` // raft id: random, made with the directory, never used again
	Name    string `msgpack:"n"`
	Addr    string `msgpack:"a"` // host:port that peers dial
	Zone    string `msgpack:"z,omitempty"`
	Durable bool   `msgpack:"d,omitempty"` // it has a directory
}

// Genesis is what is decided: the cluster's first configuration.
type Genesis struct {
	Cluster string     `msgpack:"c"` // the configured name
	Nonce   uint64     `msgpack:"r"` // random, so that two foundings of one name differ
	Founder uint64     `msgpack:"f"` // raft id of the proposer; it campaigns first
	Voters  []Identity `msgpack:"v"` // sorted by id
}

// Hash names the cluster: SHA-256 over the canonical form. Every connection, log
// segment and snapshot of the cluster carries it.
func (g *Genesis) Hash() [32]byte {
	var b []byte
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	text("clatter genesis 1")
	text(g.Cluster)
	b = binary.BigEndian.AppendUint64(b, g.Nonce)
	b = binary.BigEndian.AppendUint64(b, g.Founder)
	for _, v := range g.Voters {
		b = binary.BigEndian.AppendUint64(b, v.ID)
		text(v.Name)
		text(v.Addr)
		text(v.Zone)
	}
	return sha256.Sum256(b)
}

// Has reports whether the raft id is one of the first voters.
func (g *Genesis) Has(id uint64) bool {
	return slices.ContainsFunc(g.Voters, func(v Identity) bool { return v.ID == id })
}

// seat chooses n voters: nodes with a directory first, then one zone after the
// other, so that the loss of a zone costs as few of them as possible. The order of
// the candidates does not matter.
func seat(candidates []Identity, n int) []Identity {
	perZone := map[string]int{}
	left := slices.SortedFunc(slices.Values(candidates), byID)
	var voters []Identity
	for len(voters) < n && len(left) > 0 {
		best := 0
		for i, c := range left {
			b := left[best]
			if c.Durable != b.Durable {
				if c.Durable {
					best = i
				}
				continue
			}
			if perZone[c.Zone] < perZone[b.Zone] {
				best = i
			}
		}
		perZone[left[best].Zone]++
		voters = append(voters, left[best])
		left = slices.Delete(left, best, best+1)
	}
	slices.SortFunc(voters, byID)
	return voters
}

func byID(a, b Identity) int { return cmp.Compare(a.ID, b.ID) }
