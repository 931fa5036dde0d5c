package consensus

import (
	"encoding/binary"
	"errors"

	"github.com/clatter-go/clatter/internal/machine"
)

// Frames of a command stream (node to leader) and of a watch stream (node to any
// voter). Integers are unsigned varints; a body has its length in front.
//
//	hello    version, genesis hash (32 B), sessions...   first frame of a command stream
//	welcome  term                                        the sessions' events go here from now on
//	moved    term, name of the leader or ""              this voter does not lead; the stream ends
//	commands (id, body)...                               body is an encoded machine.Cmd
//	queries  (id, body)...                               body is an encoded machine.Query
//	answers  (id, verdict, body)...                      body is an encoded machine.Result
//	routes   sessions...                                 their events go to this stream too
//	events   body...                                     encoded machine.Event
//	watch    version, genesis hash, topic, now, from, name   first frame of a watch stream
//	mark     revision                                    everything up to it was sent
//	gone     oldest revision                             history is compacted; the stream ends
const (
	frameHello byte = 1 + iota
	frameWelcome
	frameMoved
	frameCommands
	frameQueries
	frameAnswers
	frameRoutes
	frameEvents
	frameWatch
	frameMark
	frameGone
)

const (
	protocolVersion = 1
	hashBytes       = 32
	frameGoal       = 256 << 10 // a frame is closed once it is longer; one item more fits under maxFrame
	maxFrame        = 4 << 20
	maxCommand      = 2 << 20
	maxBatch        = 4096 // items of a frame of commands
)

// verdict says what became of one attempt of a call.
type verdict uint8

const (
	answered  verdict = 0 // the body is its answer
	notTaken  verdict = 1 // certainly not in the log by this attempt: try elsewhere
	uncertain verdict = 2 // perhaps in the log
)

var errMalformed = errors.New("consensus: malformed frame")

func appendItem(b []byte, id uint64, body []byte) []byte {
	b = binary.AppendUvarint(b, id)
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

// appendBody appends the encoding of m with its length in front.
func appendBody(b []byte, m machine.Message) []byte {
	// The length is known only afterwards: room for two bytes is left, enough for
	// nearly every answer, and a longer one is moved by a byte or two.
	at := len(b)
	b = append(b, 0, 0)
	b = machine.Append(b, m)
	n := len(b) - at - 2
	var head [binary.MaxVarintLen64]byte
	h := binary.PutUvarint(head[:], uint64(n))
	if h > 2 {
		b = append(b, head[:h-2]...)
	}
	if h != 2 {
		copy(b[at+h:], b[at+2:at+2+n])
	}
	copy(b[at:], head[:h])
	return b[:at+h+n]
}

func appendAnswer(b []byte, id uint64, v verdict, r *machine.Result) []byte {
	b = binary.AppendUvarint(b, id)
	b = append(b, byte(v))
	if v != answered {
		return append(b, 0)
	}
	return appendBody(b, r)
}

// parser reads a payload from its front. The first malformed part sets bad, and
// everything read after that is zero.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) more() bool { return len(p.b) > 0 && !p.bad }

func (p *parser) number() uint64 {
	v, n := binary.Uvarint(p.b)
	if n <= 0 {
		p.bad, p.b = true, nil
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) fixed(n int) []byte {
	if n > len(p.b) {
		p.bad, p.b = true, nil
		return nil
	}
	got := p.b[:n:n]
	p.b = p.b[n:]
	return got
}

func (p *parser) body() []byte {
	n := p.number()
	if n > uint64(len(p.b)) {
		p.bad, p.b = true, nil
		return nil
	}
	return p.fixed(int(n))
}

func (p *parser) err() error {
	if p.bad {
		return errMalformed
	}
	return nil
}

func appendHello(b []byte, hash [hashBytes]byte, sessions []machine.SessionID) []byte {
	b = append(b, protocolVersion)
	b = append(b, hash[:]...)
	return appendSessions(b, sessions)
}

func appendSessions(b []byte, sessions []machine.SessionID) []byte {
	for _, s := range sessions {
		b = binary.AppendUvarint(b, uint64(s))
	}
	return b
}

func (p *parser) sessions() []machine.SessionID {
	var all []machine.SessionID
	for p.more() {
		all = append(all, machine.SessionID(p.number()))
	}
	return all
}

// hello reads version and genesis hash and reports whether both are ours.
func (p *parser) hello(hash [hashBytes]byte) bool {
	v := p.fixed(1)
	h := p.fixed(hashBytes)
	return !p.bad && v[0] == protocolVersion && [hashBytes]byte(h) == hash
}

func appendMoved(b []byte, term uint64, leader string) []byte {
	return append(binary.AppendUvarint(b, term), leader...)
}

func (p *parser) moved() (term uint64, leader string) {
	term = p.number()
	leader = string(p.b)
	p.b = nil
	return term, leader
}

type watchRequest struct {
	topic machine.Topic
	name  string
	now   bool        // begin now; else after from, which may be 0
	from  machine.Rev // the last revision that was seen
}

func appendWatch(b []byte, hash [hashBytes]byte, w watchRequest) []byte {
	b = append(b, protocolVersion)
	b = append(b, hash[:]...)
	b = append(b, byte(w.topic), 0)
	if w.now {
		b[len(b)-1] = 1
	}
	b = binary.AppendUvarint(b, uint64(w.from))
	return append(b, w.name...)
}

func (p *parser) watch() watchRequest {
	t := p.fixed(2)
	if p.bad {
		return watchRequest{}
	}
	w := watchRequest{topic: machine.Topic(t[0]), now: t[1] != 0, from: machine.Rev(p.number())}
	w.name = string(p.b)
	p.b = nil
	return w
}
