package consensus

import "github.com/clatter-go/clatter/internal/machine"

// Guard names a hold or a leadership inside a transaction, which is then refused
// unless that is still current. It is opaque: take it from Guarded.
type Guard machine.Guard

// Guarded is what a transaction can depend on: [lock.Hold] and [election.Leadership] are.
type Guarded interface{ Guard() Guard }
