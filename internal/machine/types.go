package machine

import (
	"encoding/binary"
	"fmt"
)

type (
	// SessionID names a session for ever: incarnation (20 bits) | counter (43 bits). 0 is no session.
	SessionID uint64
	// Token is a fencing token: 0 | incarnation (20 bits) | counter (43 bits). Within one
	// incarnation the tokens of one lock name are consecutive; see L2.
	Token uint64
	// Rev is a revision of the observable state: each change has its own. The incarnation is on top, as in Token.
	Rev uint64
	// TaskID names a task for ever, laid out as a Token.
	TaskID uint64
)

const counterBits = 43

// Op says what a command does.
type Op uint8

// The numbers are stored in logs: they are never reused.
const (
	OpTick         Op = 1 // nothing but the time stamp of its entry
	OpOpenSession  Op = 2
	OpKeepAlive    Op = 3
	OpCloseSession Op = 4
	OpExpire       Op = 5
	OpAcquire      Op = 10 // body Acquire
	OpCancelWait   Op = 11 // body CancelWait
	OpRelease      Op = 12 // body Release
	OpAnnounce     Op = 13 // body Announce
	OpTxn          Op = 20 // body Txn
	OpCompact      Op = 21 // body Compact
	OpAdd          Op = 30 // body Add
	OpSwapCounter  Op = 31 // body SwapCounter
	OpIDBlock      Op = 32 // body IDBlock
	OpQueue        Op = 40 // body QueueSettings
	OpSubmit       Op = 41 // body Submit
	OpWant         Op = 42 // body Want
	OpFinish       Op = 43 // body Finish
	OpCancelTask   Op = 44 // body CancelTask
)

// Cmd is one command. Session, Seq make it unique: whatever copies of it are
// sent, one is applied (L4). Floor and Done say which earlier answers the sender
// has: they are forgotten, and late copies of those commands are refused.
type Cmd struct {
	Session SessionID
	Seq     uint64   // from 1; 0 for commands of no session
	Floor   uint64   // every sequence below it was answered or given up
	Done    []uint64 // sequences from Floor on that were answered or given up
	Op      Op
	Body    []byte
}

func (c *Cmd) fields(k *coder) {
	k.u64((*uint64)(&c.Session))
	k.u64(&c.Seq)
	k.u64(&c.Floor)
	u64s(k, &c.Done)
	k.u8((*uint8)(&c.Op))
	k.bytes(&c.Body)
}

// Stamp is what the leader adds to the commands of one entry.
type Stamp struct {
	Proposer uint64 // who packed the entry: a raft id mixed with a boot, so that an answer finds its waiters
	Number   uint64 // the proposer's count of entries
	Clock    uint64 // cluster time, ns: monotonic over terms, standing while nobody leads
	Wall     int64  // the leader's wall clock, Unix ns: for schedules only, never for leases
}

// AppendEntry appends the payload of one raft entry: the stamp, then each encoded
// command with its length in front.
func AppendEntry(b []byte, s Stamp, cmds [][]byte) []byte {
	b = append(b, entryVersion)
	c := coder{b: b}
	s.fields(&c)
	b = binary.AppendUvarint(c.b, uint64(len(cmds)))
	for _, cmd := range cmds {
		b = binary.AppendUvarint(b, uint64(len(cmd)))
		b = append(b, cmd...)
	}
	return b
}

const entryVersion = 1

func (s *Stamp) fields(k *coder) {
	k.u64(&s.Proposer)
	k.u64(&s.Number)
	k.u64(&s.Clock)
	k.i64(&s.Wall)
}

// DecodeEntry reads what AppendEntry wrote. The commands alias b.
func DecodeEntry(b []byte) (s Stamp, cmds [][]byte, err error) {
	if len(b) == 0 || b[0] != entryVersion {
		return s, nil, fmt.Errorf("machine: entry of %d bytes has no known version", len(b))
	}
	c := coder{b: b[1:], reading: true}
	s.fields(&c)
	n := c.count(0)
	if c.err == nil {
		cmds = make([][]byte, n)
	}
	for i := range cmds {
		c.bytes(&cmds[i])
	}
	return s, cmds, c.err
}

// Code is the outcome of a command or a query, as the machine sees it.
type Code uint8

// The codes; they travel and are kept in snapshots.
const (
	OK         Code = 0
	Queued     Code = 1 // in line; N is the place, 1 is next. An EventGranted follows
	Locked     Code = 2 // not to be had at once and Try was set; Body is a LockInfo with the first 16 waiters, N counts them all
	Deadlock   Code = 3 // waiting would never end; Body is a Cycle
	NoSession  Code = 4 // the session has ended: the sender's, or N if that is another
	Stale      Code = 5 // a late copy: its answer was acknowledged or given up before
	Conflict   Code = 6 // a condition did not hold: N is its place, Rev the current revision of its key
	NotFound   Code = 7
	StaleToken Code = 8  // the guard's hold is not current
	Full       Code = 9  // a bound was reached; N is the bound
	Invalid    Code = 10 // the command makes no sense; Body says why
	Duplicate  Code = 11 // the unique key is taken; ID-bearing bodies name the task that has it
	Compacted  Code = 12 // history is gone; Rev is the oldest from which it can be resumed
	Unknown    Code = 13 // an op or query this version does not know
	Cancelled  Code = 14 // the wait was cancelled before it was granted
	WindowFull Code = 15 // 4096 answers of the session are not acknowledged: not applied, and copies of it are Stale
)

// Result answers a command or a query.
type Result struct {
	Code  Code
	Token Token  // of a grant
	Rev   Rev    // of the last change made, or read
	N     uint64 // counters, places, session ids
	Body  []byte // more, by op
}

func (r *Result) fields(k *coder) {
	k.u8((*uint8)(&r.Code))
	k.u64((*uint64)(&r.Token))
	k.u64((*uint64)(&r.Rev))
	k.u64(&r.N)
	k.bytes(&r.Body)
}

// EventKind says what happened.
type EventKind uint8

// The kinds of events, with what their fields mean.
const (
	EventGranted  EventKind = 1  // to Session: the wait Seq became a hold with Token
	EventAssigned EventKind = 2  // to Session: Body is an Assignment, N its Total
	EventClosed   EventKind = 3  // to Session: it has ended
	EventPut      EventKind = 10 // Name is the key, Body a Change
	EventDelete   EventKind = 11 // Name is the key, Body a Change
	EventLeader   EventKind = 12 // Name is the election, Body a LeaderInfo
	EventTask     EventKind = 13 // Name is the queue, N the task, Body a TaskResult: it is finished
	EventCancel   EventKind = 14 // to Session: the running task N is to be cancelled
)

// Event tells what a command changed. Events with a Session go to that session
// only and may be lost: its owner asks again (QueryWait, QueryClaims) when the
// counters in its keepalive answers, or a new leader, say so. Events without one
// are observable: each has its own Rev, and Last marks the end of a transaction.
type Event struct {
	Kind    EventKind
	Session SessionID
	Seq     uint64
	Token   Token
	Rev     Rev
	Last    bool
	N       uint64
	Name    string
	Body    []byte
}

func (e *Event) fields(k *coder) {
	k.u8((*uint8)(&e.Kind))
	k.u64((*uint64)(&e.Session))
	k.u64(&e.Seq)
	k.u64((*uint64)(&e.Token))
	k.u64((*uint64)(&e.Rev))
	k.flag(&e.Last)
	k.u64(&e.N)
	k.str(&e.Name)
	k.bytes(&e.Body)
}

// Outcome is what applying one entry produced: one answer per command, in order,
// and the events in the order in which they happened.
type Outcome struct {
	Stamp   Stamp
	Answers []Answer
	Events  []Event
}

// Answer is the result of one command of an entry.
type Answer struct {
	Session SessionID
	Seq     uint64
	Result  Result
}
