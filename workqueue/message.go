package workqueue

import (
	"encoding/binary"
	"errors"
	"time"
)

// The messages between nodes are coded by hand: they carry hundreds of small tasks
// each. Integers are unsigned varints, bytes and strings have their length in front.

// Methods that nodes call of one another.
const (
	methodSteal = "workqueue/steal" // stealRequest -> stealAnswer
	methodDone  = "workqueue/done"  // report -> nothing
	methodFeed  = "workqueue/feed"  // feed -> nothing
	methodWait  = "workqueue/wait"  // waitRequest -> waitAnswer
)

var errMalformed = errors.New("workqueue: malformed message")

// scribe walks the fields of a message, writing them or reading them.
type scribe struct {
	b       []byte
	reading bool
	bad     bool
}

func (s *scribe) num(v *uint64) {
	if !s.reading {
		s.b = binary.AppendUvarint(s.b, *v)
		return
	}
	x, n := binary.Uvarint(s.b)
	if n <= 0 {
		s.bad, s.b, *v = true, nil, 0
		return
	}
	*v, s.b = x, s.b[n:]
}

func (s *scribe) int(v *int) {
	u := uint64(*v)
	s.num(&u)
	if u > 1<<31 {
		s.bad, u = true, 0
	}
	*v = int(u)
}

// dur codes a length of time; negative ones are 0.
func (s *scribe) dur(v *time.Duration) {
	u := uint64(max(*v, 0))
	s.num(&u)
	if u > 1<<63-1 {
		s.bad, u = true, 0
	}
	*v = time.Duration(u)
}

// bytes reads a slice that aliases the message.
func (s *scribe) bytes(v *[]byte) {
	n := uint64(len(*v))
	s.num(&n)
	if !s.reading {
		s.b = append(s.b, *v...)
		return
	}
	if n > uint64(len(s.b)) {
		s.bad, s.b, *v = true, nil, nil
		return
	}
	*v, s.b = s.b[:n:n], s.b[n:]
}

func (s *scribe) str(v *string) {
	if !s.reading {
		s.b = binary.AppendUvarint(s.b, uint64(len(*v)))
		s.b = append(s.b, *v...)
		return
	}
	var raw []byte
	s.bytes(&raw)
	*v = string(raw)
}

type message interface{ fields(s *scribe) }

func pack(m message) []byte {
	s := scribe{b: make([]byte, 0, size(m))}
	m.fields(&s)
	return s.b
}

// size is about how long the encoding of m is.
func size(m message) int {
	n := 128
	switch m := m.(type) {
	case *stealAnswer:
		for i := range m.tasks {
			n += 48 + len(m.tasks[i].payload) + len(m.tasks[i].checkpoint)
		}
	case *report:
		for i := range m.ends {
			n += 32 + len(m.ends[i].result) + len(m.ends[i].checkpoint) + len(m.ends[i].err)
		}
	}
	return n
}

func unpack(b []byte, m message) error {
	s := scribe{b: b, reading: true}
	m.fields(&s)
	if s.bad || len(s.b) > 0 {
		return errMalformed
	}
	return nil
}

// array codes a list whose elements take at least one byte each.
func array[T any](s *scribe, v *[]T, one func(*T)) {
	n := uint64(len(*v))
	s.num(&n)
	if s.reading {
		if n > uint64(len(s.b)) {
			s.bad, s.b = true, nil
			return
		}
		*v = make([]T, 0, min(n, stealBatch))
	}
	for i := range n {
		if !s.reading {
			one(&(*v)[i])
			continue
		}
		var zero T
		*v = append(*v, zero)
		if one(&(*v)[i]); s.bad {
			return
		}
	}
}

// stealRequest asks an origin for tasks. Asks of one thief are numbered: a late copy
// of an earlier one gets nothing.
type stealRequest struct {
	queue string
	ask   uint64
	ack   uint64 // the last chunk that arrived; a later one is taken back
	want  int    // 0: only settles what became of the last chunk
}

func (m *stealRequest) fields(s *scribe) {
	s.str(&m.queue)
	s.num(&m.ask)
	s.num(&m.ack)
	s.int(&m.want)
}

// stealAnswer hands tasks over.
type stealAnswer struct {
	start uint64 // of the origin's engine
	seq   uint64 // of the last chunk given to this thief
	left  int    // tasks that the origin still has
	tasks []parcel
}

func (m *stealAnswer) fields(s *scribe) {
	s.num(&m.start)
	s.num(&m.seq)
	s.int(&m.left)
	array(s, &m.tasks, func(t *parcel) { t.fields(s) })
}

// parcel is a task handed over.
type parcel struct {
	number     uint64
	claim      uint64
	attempt    int
	failed     int
	submitted  uint64        // Unix ns
	left       time.Duration // until its deadline; 0 none
	checkpoint []byte
	payload    []byte
}

func (t *parcel) fields(s *scribe) {
	s.num(&t.number)
	s.num(&t.claim)
	s.int(&t.attempt)
	s.int(&t.failed)
	s.num(&t.submitted)
	s.dur(&t.left)
	s.bytes(&t.checkpoint)
	s.bytes(&t.payload)
}

// report tells an origin how attempts of its tasks ended.
type report struct {
	queue string
	start uint64 // of the engine that handed the tasks over
	ends  []ended
}

func (m *report) fields(s *scribe) {
	s.str(&m.queue)
	s.num(&m.start)
	array(s, &m.ends, func(e *ended) { e.fields(s) })
}

// ended is the end of one attempt.
type ended struct {
	number uint64
	claim  uint64
	verdict
}

func (e *ended) fields(s *scribe) {
	s.num(&e.number)
	s.num(&e.claim)
	end := uint64(e.end)
	s.num(&end)
	if end < uint64(done) || end > uint64(snooze) {
		s.bad, end = true, uint64(retry)
	}
	e.end = ending(end)
	s.dur(&e.delay)
	s.str(&e.err)
	s.bytes(&e.result)
	s.bytes(&e.checkpoint)
}

// feed tells a node that there is work at an origin.
type feed struct{ queue, origin string }

func (m *feed) fields(s *scribe) { s.str(&m.queue); s.str(&m.origin) }

// waitRequest asks an origin for the result of a task.
type waitRequest struct {
	queue         string
	start, number uint64
}

func (m *waitRequest) fields(s *scribe) { s.str(&m.queue); s.num(&m.start); s.num(&m.number) }

// waitAnswer is the result; without one the task is not finished yet, or unknown.
type waitAnswer struct {
	finished, unknown bool
	Result
}

func (m *waitAnswer) fields(s *scribe) {
	s.flag(&m.finished)
	s.flag(&m.unknown)
	s.str(&m.State)
	s.bytes(&m.Value)
	s.str(&m.Err)
	s.int(&m.Attempts)
	s.str(&m.Node)
}

func (s *scribe) flag(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	s.num(&u)
	*v = u != 0
}
