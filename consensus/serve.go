package consensus

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"github.com/clatter-go/clatter/internal/machine"
	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

// maxUnread bounds what a caller has not read of its answers and events: beyond
// it the stream is reset, and the caller asks again.
const maxUnread = 64 << 20

// serveCommands is the handler of command streams.
func (e *Engine) serveCommands(ctx context.Context, from transport.Peer, st *transport.Stream) {
	defer st.Cancel()
	typ, payload, err := st.ReadFrame()
	p := parser{b: payload}
	if err != nil || typ != frameHello || !p.hello(e.hash()) {
		return
	}
	sessions := p.sessions()
	v := e.replica()
	o := e.awaitOffice(ctx, v)
	if o == nil {
		term, leader, _ := e.client.compass.read()
		if leader == e.cfg.Name {
			leader = ""
		}
		part(st, wire.AppendFrame(nil, frameMoved, appendMoved(nil, term, leader)))
		return
	}
	c := &caller{voter: v, stream: st, bell: newBell(), office: o}
	v.owners.add(c, sessions...)
	defer v.owners.drop(c)
	welcome := binary.AppendUvarint(nil, o.term)
	if st.WriteFrames(wire.AppendFrame(nil, frameWelcome, welcome)) != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(v.ctx, cancel)()
	var wg sync.WaitGroup
	wg.Go(func() {
		if !c.write(ctx) {
			st.Cancel() // ends read
		}
	})
	c.read(ctx)
	cancel()
	wg.Wait()
}

// awaitOffice waits while an election that this voter has won is being confirmed.
// It returns nil if the voter does not lead.
func (e *Engine) awaitOffice(ctx context.Context, v *voter) *office {
	for v != nil {
		changed := e.changed()
		if o := v.office(); o != nil {
			return o
		}
		if !v.elected() {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	return nil
}

// caller is a node that sends its commands here, as the sink of their answers.
type caller struct {
	voter  *voter
	stream *transport.Stream
	office *office
	bell   bell

	mu    sync.Mutex // guards what follows
	out   framer
	spare []byte
}

// framer packs items into frames of one type each, in their order.
type framer struct {
	b    []byte
	at   int
	typ  byte
	open bool
}

func (f *framer) begin(typ byte) {
	if f.open && f.typ == typ && len(f.b)-f.at < frameGoal {
		return
	}
	f.end()
	f.at, f.typ, f.open = len(f.b), typ, true
	f.b = wire.BeginFrame(f.b, typ)
}

func (f *framer) end() {
	if f.open {
		wire.EndFrame(f.b, f.at)
		f.open = false
	}
}

func (c *caller) answer(id uint64, v verdict, r *machine.Result) {
	if r != nil && len(r.Body) > maxFrame-frameGoal-64 {
		r = &machine.Result{Code: machine.Full, N: maxFrame - frameGoal - 64}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.begin(frameAnswers)
	c.out.b = appendAnswer(c.out.b, id, v, r)
}

func (c *caller) event(e *machine.Event) {
	if len(e.Body) > maxFrame-frameGoal-1024 {
		return // lost, as events may be: the owner's counters say so
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.begin(frameEvents)
	c.out.b = appendBody(c.out.b, e)
}

func (c *caller) flush() {
	c.mu.Lock()
	unread := len(c.out.b)
	c.mu.Unlock()
	if unread > maxUnread {
		c.stream.Cancel()
		return
	}
	c.bell.ring()
}

// swap returns the frames queued since the last swap.
func (c *caller) swap() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.end()
	got := c.out.b
	c.out.b = c.spare[:0]
	if c.spare = got; cap(got) > 4<<20 {
		c.spare = nil
	}
	return got
}

// write sends whatever was queued while the last frames were written, at once. It
// reports whether it said goodbye, after which the caller has a moment to read that.
func (c *caller) write(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-c.office.over: // its last answers are queued already
			term, leader, _ := c.voter.engine.client.compass.read()
			_ = c.stream.SetDeadline(time.Now().Add(time.Second))
			last := wire.AppendFrame(c.swap(), frameMoved, appendMoved(nil, term, leader))
			return c.stream.WriteFrames(last) == nil && c.stream.Close() == nil
		case <-c.bell:
		}
		if b := c.swap(); len(b) > 0 && c.stream.WriteFrames(b) != nil {
			return false
		}
	}
}

// read takes commands and queries until the stream ends. A full replica makes it
// stop reading, and the caller's stream then stops by flow control.
func (c *caller) read(ctx context.Context) {
	for {
		typ, payload, err := c.stream.ReadFrame()
		if err != nil {
			return
		}
		p := parser{b: payload}
		switch typ {
		case frameCommands:
			err = c.commands(ctx, &p)
		case frameQueries:
			err = c.queries(ctx, &p)
		case frameRoutes:
			c.voter.owners.add(c, p.sessions()...)
			err = p.err()
		default:
			err = errMalformed
		}
		if err != nil {
			return
		}
	}
}

func (c *caller) commands(ctx context.Context, p *parser) error {
	p.b = bytes.Clone(p.b) // the log keeps the commands
	var batch []proposal
	for p.more() {
		k := proposal{sink: c, id: p.number(), cmd: p.body()}
		if p.bad {
			break
		}
		if err := lawful(k.cmd); err != nil {
			c.answer(k.id, answered, &machine.Result{Code: machine.Invalid, Body: []byte(err.Error())})
			c.flush()
			continue
		}
		batch = append(batch, k)
	}
	if p.bad || len(batch) > maxBatch {
		return errMalformed
	}
	for len(batch) > 0 && !c.voter.propose(batch...) {
		if err := pause(ctx, retryWait); err != nil {
			return err
		}
	}
	return nil
}

func (c *caller) queries(ctx context.Context, p *parser) error {
	p.b = bytes.Clone(p.b)
	for p.more() {
		r := &reading{sink: c, id: p.number(), query: new(machine.Query)}
		if err := machine.Decode(p.body(), r.query); err != nil || p.bad {
			return errMalformed
		}
		for !c.voter.reads.put(r) {
			if err := pause(ctx, retryWait); err != nil {
				return err
			}
		}
	}
	return p.err()
}

// lawful refuses what would not decode at apply, and what only the leader itself
// may put in the log.
func lawful(cmd []byte) error {
	var c machine.Cmd
	if err := machine.Decode(cmd, &c); err != nil {
		return err
	}
	if c.Op == machine.OpExpire || c.Op == machine.OpTick {
		return errors.New("only the leader expires sessions and tells the time")
	}
	return nil
}

// serveWatch is the handler of watch streams.
func (e *Engine) serveWatch(ctx context.Context, _ transport.Peer, st *transport.Stream) {
	defer st.Cancel()
	typ, payload, err := st.ReadFrame()
	p := parser{b: payload}
	if err != nil || typ != frameWatch || !p.hello(e.hash()) {
		return
	}
	w := p.watch()
	v := e.replica()
	if v == nil || p.bad {
		return
	}
	sub, err := v.subscribe(ctx, w)
	if err != nil {
		sendGone(st, err)
		return
	}
	defer v.hub.drop(sub)
	defer context.AfterFunc(v.ctx, st.Cancel)()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.bell:
		}
		batch, err := sub.take()
		if err != nil {
			sendGone(st, err)
			return
		}
		var f framer
		for i := range batch {
			f.update(&batch[i])
		}
		f.end()
		if len(f.b) > 0 && st.WriteFrames(f.b) != nil {
			return
		}
	}
}

func (f *framer) update(u *Update) {
	if !u.Synced {
		f.begin(frameEvents)
		f.b = appendBody(f.b, &u.Event)
		return
	}
	f.begin(frameMark)
	f.b = binary.AppendUvarint(f.b, uint64(u.Rev))
	f.end()
}

func sendGone(st *transport.Stream, err error) {
	var gone *CompactedError
	if !errors.As(err, &gone) {
		return
	}
	b := binary.AppendUvarint(nil, uint64(gone.Oldest))
	part(st, wire.AppendFrame(nil, frameGone, b))
}

// part sends the last frames of a stream and gives the peer a moment to read them:
// a reset at once could overtake them.
func part(st *transport.Stream, last []byte) {
	_ = st.SetDeadline(time.Now().Add(time.Second))
	if st.WriteFrames(last) != nil || st.Close() != nil {
		return
	}
	for {
		if _, _, err := st.ReadFrame(); err != nil {
			return
		}
	}
}
