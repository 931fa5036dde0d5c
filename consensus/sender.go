package consensus

import (
	"context"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

// Frames of a raft stream: a hello, then messages.
const (
	frameRaftHello byte = 1 // version, genesis hash, raft id of the sender
	frameRaft      byte = 2 // a raftpb.Message
)

const (
	maxControl = 1024     // messages waiting for a peer; what raft drops it sends again
	maxLog     = 512      // appends waiting for a peer
	maxLogSize = 32 << 20 // and their bytes
)

// peer is another voter: two senders, so that a heartbeat never waits behind an
// append.
type peer struct {
	id   uint64
	name string
	ctl  sender
	log  sender
}

// sender brings messages of one class to one peer. Whatever queued while the last
// write ran goes with the next one.
type sender struct {
	voter *voter
	to    *peer
	class transport.Class
	bell  bell

	mu    sync.Mutex // guards what follows
	queue []*raftpb.Message
	size  int

	stream *transport.Stream // the run goroutine's
	told   ack               // the run goroutine's
}

// ack is what a follower told the leader last.
type ack struct {
	term, index uint64
	at          time.Time
}

func (v *voter) newPeer(id uint64, name string) *peer {
	p := &peer{id: id, name: name}
	p.ctl = sender{voter: v, to: p, class: transport.ClassRaftCtl, bell: newBell()}
	p.log = sender{voter: v, to: p, class: transport.ClassRaftLog, bell: newBell()}
	return p
}

// send queues messages for peers. It never blocks: a full queue drops.
func (v *voter) send(messages ...*raftpb.Message) {
	for _, m := range messages {
		p := v.peers[m.GetTo()]
		if p == nil || v.quiet.Load() {
			continue
		}
		switch m.GetType() {
		case raftpb.MsgApp, raftpb.MsgAppResp:
			p.log.put(m)
		default:
			p.ctl.put(m)
		}
	}
}

func (s *sender) put(m *raftpb.Message) {
	size, limit := 0, maxControl
	if s.class == transport.ClassRaftLog {
		limit = maxLog
		for _, e := range m.GetEntries() {
			size += len(e.GetData())
		}
	}
	s.mu.Lock()
	full := len(s.queue) >= limit || s.size+size > maxLogSize && len(s.queue) > 0
	if !full {
		s.queue = append(s.queue, m)
		s.size += size
	}
	s.mu.Unlock()
	if full {
		s.voter.undelivered(m)
		return
	}
	s.bell.ring()
}

func (s *sender) take() []*raftpb.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.queue
	s.queue, s.size = nil, 0
	return got
}

// thin leaves out what the messages behind it say as well: acknowledgements are
// cumulative, and an append without entries only brings the commit index, which every
// later one carries. An acknowledgement that was sent a moment ago is not repeated;
// after a tick it is, because a leader that probes waits for one.
func (s *sender) thin(msgs []*raftpb.Message) []*raftpb.Message {
	if s.class != transport.ClassRaftLog {
		return msgs
	}
	var app, resp *raftpb.Message // the last of each
	for _, m := range msgs {
		switch {
		case m.GetType() == raftpb.MsgApp:
			app = m
		case isAck(m):
			resp = m
		}
	}
	return slices.DeleteFunc(msgs, func(m *raftpb.Message) bool {
		switch {
		case m.GetType() == raftpb.MsgApp:
			return m != app && len(m.GetEntries()) == 0 && m.GetTerm() == app.GetTerm()
		case isAck(m):
			return m != resp && m.GetTerm() == resp.GetTerm() && m.GetIndex() <= resp.GetIndex() || s.repeats(m)
		}
		return false
	})
}

func isAck(m *raftpb.Message) bool { return m.GetType() == raftpb.MsgAppResp && !m.GetReject() }

func (s *sender) repeats(m *raftpb.Message) bool {
	now := ack{term: m.GetTerm(), index: m.GetIndex(), at: time.Now()}
	if s.told.term == now.term && s.told.index >= now.index && now.at.Sub(s.told.at) < s.voter.pace.Tick {
		return true
	}
	s.told = now
	return false
}

func (s *sender) run(ctx context.Context) {
	defer s.drop()
	var buf []byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.bell:
		}
		msgs := s.thin(s.take())
		for len(msgs) > 0 {
			sent, err := s.write(ctx, &buf, msgs)
			if err != nil {
				s.drop()
				s.voter.undelivered(msgs...)
				break
			}
			msgs = msgs[sent:]
		}
	}
}

// write sends the first messages, about 256 KiB of them, and says how many.
func (s *sender) write(ctx context.Context, buf *[]byte, msgs []*raftpb.Message) (int, error) {
	b := (*buf)[:0]
	if s.stream == nil {
		if err := s.open(ctx); err != nil {
			return 0, err
		}
		b = wire.AppendFrame(b, frameRaftHello, s.voter.hello())
	}
	n := 0
	for n < len(msgs) && len(b) < frameGoal {
		at := len(b)
		b = wire.BeginFrame(b, frameRaft)
		var err error
		if b, err = (proto.MarshalOptions{}).MarshalAppend(b, msgs[n]); err != nil {
			return 0, err
		}
		wire.EndFrame(b, at)
		n++
	}
	if *buf = b; cap(b) > 4<<20 {
		*buf = nil
	}
	return n, s.stream.WriteFrames(b)
}

func (s *sender) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	st, err := s.voter.engine.cfg.Transport.Open(ctx, s.to.name, s.class)
	if err != nil {
		return err
	}
	s.stream = st
	return nil
}

func (s *sender) drop() {
	if s.stream != nil {
		s.stream.Cancel()
		s.stream, s.told = nil, ack{}
	}
}

func (v *voter) hello() []byte {
	b := append([]byte{protocolVersion}, v.hash[:]...)
	return binary.AppendUvarint(b, v.id)
}

// serveRaft is the handler of raft streams. A raft id is bound to the name that the
// genesis gives it: nobody else speaks for it.
func (e *Engine) serveRaft(ctx context.Context, from transport.Peer, st *transport.Stream) {
	defer st.Cancel()
	v := e.replica()
	if v == nil {
		return
	}
	defer context.AfterFunc(v.ctx, st.Cancel)()
	typ, payload, err := st.ReadFrame()
	p := parser{b: payload}
	if err != nil || typ != frameRaftHello || !p.hello(v.hash) {
		return
	}
	id := p.number()
	if peer := v.peers[id]; p.bad || peer == nil || peer.name != from.Name {
		e.cfg.Logger.Warn("consensus: a raft stream is refused: its raft id is not that node's", "peer", from.Name, "id", id)
		return
	}
	for {
		typ, payload, err := st.ReadFrame()
		if err != nil || typ != frameRaft {
			return
		}
		m := new(raftpb.Message)
		if err := proto.Unmarshal(payload, m); err != nil {
			return
		}
		if m.GetFrom() != id || m.GetTo() != v.id || !remoteType(m.GetType()) {
			e.cfg.Logger.Warn("consensus: a raft stream is ended: a message is not its sender's", "peer", from.Name, "type", m.GetType())
			return
		}
		v.inbox.put(m) // beyond the bound it is lost, and raft sends it again
	}
}

// remoteType reports whether a message of this type may come from a peer.
func remoteType(t raftpb.MessageType) bool {
	switch t {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgVote, raftpb.MsgVoteResp, raftpb.MsgPreVote, raftpb.MsgPreVoteResp,
		raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgReadIndex, raftpb.MsgReadIndexResp, raftpb.MsgTimeoutNow,
		raftpb.MsgTransferLeader:
		return true
	}
	return false
}

// undelivered tells raft that messages to a peer were lost: it then sends one append
// at a time until the peer answers.
func (v *voter) undelivered(messages ...*raftpb.Message) {
	for _, m := range messages {
		if m.GetType() == raftpb.MsgApp {
			id := m.GetTo()
			v.order(func() { v.loop.rep.Unreachable(id) })
			return
		}
	}
}
