package replica

import (
	"encoding/binary"

	"github.com/clatter-go/clatter/internal/machine"
)

const (
	second      = 1_000_000_000
	expireLimit = 1000        // sessions that one Expire ends
	defaultTTL  = 10 * second // of a session, for the length of the grace
)

// office is the time during which this replica serves as the leader of one term,
// and its cluster clock: the stamp that the log ended with plus what this node's
// monotonic clock has advanced since.
type office struct {
	serving bool
	based   bool   // clock0 and mono0 belong together
	clock0  uint64 // cluster time at mono0
	mono0   uint64
	last    uint64 // the last stamp
	expires uint64 // stamp of an Expire that is not applied yet; 0 is none
}

// clock returns the cluster time. The base is set at the first call after the
// term's first entry was applied: a later reading of the clock than that, so that
// the cluster clock can only be slow.
func (o *office) clock(mono uint64) uint64 {
	if !o.based {
		o.based, o.mono0 = true, mono
	}
	return max(o.last, o.clock0+mono-o.mono0)
}

func (o *office) stamped(clock uint64, expires bool) {
	o.last = clock
	if expires {
		o.expires = clock
	}
}

// pass notes a reading of the monotonic clock. If the loop stood still for longer
// than an election takes, another may have led meanwhile, and owners could not
// renew: the clock goes on from the last stamp as it would after an election. It
// has thereby given every session the whole gap, so that no other grace is due.
func (r *Replica) pass(mono uint64) {
	o := &r.office
	if o.based && (mono < r.mono || mono-r.mono > r.election) {
		o.clock0, o.mono0 = o.last, mono
	}
	r.mono = mono
}

// prepare encodes the commands of the leader itself.
func (r *Replica) prepare() {
	// An owner finds the new leader and renews within a third of its TTL (protocol 18).
	grace := max(2*second, r.election+defaultTTL/3)
	expire := machine.Expire{Limit: expireLimit, Grace: grace}
	r.expire = machine.Encode(&machine.Cmd{Op: machine.OpExpire, Body: machine.Encode(&expire)})
	r.tick = machine.Encode(&machine.Cmd{Op: machine.OpTick})
}

// chore returns the command that the leader itself adds to the entry stamped clock:
// an Expire when a session is overdue, a Tick when something else is due that no
// other entry would bring about, or when the cluster clock would otherwise not be
// written down for a second while a timer runs (protocol 18).
func (r *Replica) chore(clock uint64) (cmd []byte, expires bool) {
	o, t := &r.office, &r.timers
	if t.expiry <= clock && o.expires == 0 {
		return r.expire, true
	}
	if len(r.queue.cmds) > 0 {
		return nil, false // their entry is a stamp, too
	}
	stale := t.clock < o.last // an entry under way will do what is due until o.last
	due := t.due <= clock && (t.due > o.last || !stale)
	armed := t.due != never || t.expiry != never
	if due || armed && clock-o.last >= second {
		return r.tick, false
	}
	return nil, false
}

// timers is what the machine waits for, as of the last entries applied. It travels
// from the goroutine that applies to the loop inside the response of raft.
type timers struct {
	clock  uint64 // cluster time of the machine
	due    uint64 // when an entry would do something by itself
	expiry uint64 // the earliest deadline of a session
}

const never = 1<<64 - 1

func timersOf(m *machine.Machine) timers {
	t := timers{clock: m.Clock(), due: never, expiry: never}
	if due, some := m.NextDue(); some {
		t.due = due
	}
	if expiry, some := m.Expirable(); some {
		t.expiry = expiry
	}
	return t
}

func (t *timers) encode() []byte {
	b := make([]byte, 0, 24)
	b = binary.BigEndian.AppendUint64(b, t.clock)
	b = binary.BigEndian.AppendUint64(b, t.due)
	return binary.BigEndian.AppendUint64(b, t.expiry)
}

func decodeTimers(b []byte) (t timers, ok bool) {
	if len(b) != 24 {
		return timers{}, false
	}
	return timers{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}, true
}
