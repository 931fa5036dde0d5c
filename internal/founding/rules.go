package founding

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"
)

// Settle is how long a view that holds a quorum, but not all of the population,
// must stand unchanged before its first node proposes.
const Settle = 5 * time.Second

// Rules are the declared facts of one node's founding.
type Rules struct {
	Cluster    string
	Expect     int      // the population that founds; 0: this node only joins
	Voters     int      // wanted voters, odd
	Self       Identity // this node
	Seeds      []string // host:port of every address that Join and the discoverer name, our own included if named
	FoundAlone bool     // waive the majority of the seeds
}

// Candidate is a fresh node in sight: it takes part in foundings and belongs to no cluster.
type Candidate struct {
	Identity
	Digest uint32 // of its rules
}

// Quorum is floor(Expect/2)+1.
func (r *Rules) Quorum() int { return r.Expect/2 + 1 }

// Seats is the number of first voters: the largest odd number that is at most
// Voters and Expect.
func (r *Rules) Seats() int {
	n := min(r.Voters, r.Expect)
	return n - (n+1)%2
}

// Digest is equal on nodes whose declared population is the same. Unequal ones
// never found together: quorums of different sizes do not meet.
func (r *Rules) Digest() uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%q %d %d", r.Cluster, r.Expect, r.Voters)
	return h.Sum32()
}

// Judge says whether this node should propose now. seen are the fresh candidates
// in sight, without this node, dead ones included until gossip forgets them;
// unchanged is how long that view has stood. A nil error means propose; any other
// says what is missing, for people.
func (r *Rules) Judge(seen []Candidate, unchanged time.Duration) error {
	if r.Expect == 0 {
		return fmt.Errorf("found %q: this node only joins (Expect 0): start a node that founds, or wait for a cluster to appear at the addresses in Join", r.Cluster)
	}
	if n := len(seen) + 1; n > r.Expect {
		return fmt.Errorf("found %q: %d nodes are in sight and Expect is %d: set Expect to the number of nodes that exist before the founding", r.Cluster, n, r.Expect)
	}
	ids := []Identity{r.Self}
	for _, c := range seen {
		if c.Digest != r.Digest() {
			return fmt.Errorf("found %q: %s declares another Expect or Voters than ours (%d, %d): make them equal", r.Cluster, c.Name, r.Expect, r.Voters)
		}
		ids = append(ids, c.Identity)
	}
	if err := r.enough(ids); err != nil {
		return err
	}
	slices.SortFunc(ids, byID)
	rank := time.Duration(slices.IndexFunc(ids, func(i Identity) bool { return i.ID == r.Self.ID }))
	wait := rank * time.Second // the first in order proposes; the next only if nothing came of it
	if len(ids) < r.Expect {
		wait += Settle
	}
	if unchanged < wait {
		return fmt.Errorf("found %q: %d of %d nodes in sight, %v until this node proposes", r.Cluster, len(ids), r.Expect, wait-unchanged)
	}
	return nil
}

// enough reports whether these identities together may found.
func (r *Rules) enough(ids []Identity) error {
	need := max(r.Quorum(), r.Seats())
	if slices.ContainsFunc(ids, func(i Identity) bool { return !i.Durable }) {
		need = r.Expect
	}
	if len(ids) < need {
		return fmt.Errorf("found %q: %d of the %d nodes that founding needs (Expect %d)", r.Cluster, len(ids), need, r.Expect)
	}
	if r.FoundAlone {
		return nil
	}
	named := 0
	for _, s := range r.Seeds {
		if slices.ContainsFunc(ids, func(i Identity) bool { return i.Addr == s }) {
			named++
		}
	}
	if len(r.Seeds) > 0 && named <= len(r.Seeds)/2 {
		return fmt.Errorf("found %q: %d of the %d addresses in Join answer, and founding needs a majority of them", r.Cluster, named, len(r.Seeds))
	}
	return nil
}
