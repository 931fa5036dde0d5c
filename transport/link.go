package transport

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/clatter-go/clatter/internal/wire"
)

const (
	unusedCtl  = 60 * time.Second // then its dialer closes a connection
	unusedBulk = 15 * time.Second
	pingSize   = 32 // quic-go answers nothing below 43 bytes in all with a stateless reset
)

// link is one connection whose Hellos were exchanged.
//
// It is retired when no new streams shall run on it. Then each end sends, on the
// control stream, Drain with the number of streams it has opened in all, and Done
// when it has served that many of the other's and its own are over. After both Dones
// the dialer closes. So a stream that was opened a moment before the other end
// retired the connection is still served.
type link struct {
	t       *Transport
	conn    *quic.Conn
	control *quic.Stream
	r       *bufio.Reader // of control
	peer    Peer
	purpose purpose
	dialed  bool // by us
	since   time.Time
	calls   chan struct{} // a slot for each call in flight on it

	// mu guards the count of streams and the way to the end.
	mu      sync.Mutex
	retired bool
	opening int    // Open is waiting for quic-go
	opened  uint64 // by us, in all
	active  int    // opened by us and not over
	serving int    // opened by the peer and not over
	served  uint64 // opened by the peer, in all
	theirs  int64  // how many the peer has opened in all, -1 until its Drain
	drained bool   // our Drain is sent
	done    bool   // our Done is sent
	theyre  bool   // done as well
	goodbye quic.ApplicationErrorCode
	used    time.Time
	classes map[Class]int // streams of the peer that run here
	idle    []pooled      // streams for calls, the one used last at the end

	heard  uint64 // packets received at the last sweep; of the sweeper alone
	silent int    // sweeps without a packet; of the sweeper alone
}

// open opens a stream. It fails at once if l is retired or has ended, and is then no
// longer used for new streams.
func (l *link) open(ctx context.Context, c Class) (*Stream, error) {
	l.mu.Lock()
	if l.retired {
		l.mu.Unlock()
		return nil, errRetired
	}
	l.opening++
	l.mu.Unlock()
	qs, err := l.conn.OpenStreamSync(ctx)
	l.mu.Lock()
	l.opening--
	if err == nil {
		l.opened++
		l.active++
		l.used = time.Now()
	}
	l.mu.Unlock()
	if err == nil {
		s := newStream(l, qs, c, true)
		if _, err = qs.Write([]byte{byte(c)}); err == nil {
			return s, nil
		}
		s.Cancel()
	}
	l.advance()
	if l.conn.Context().Err() != nil {
		l.t.withdraw(l, meaning(context.Cause(l.conn.Context())))
	}
	return nil, meaning(err)
}

// ended notes that a stream of ours is over.
func (l *link) ended() {
	l.mu.Lock()
	l.active--
	l.used = time.Now()
	l.mu.Unlock()
	l.advance()
}

// accept serves the streams of the peer until the connection ends.
func (l *link) accept() {
	for {
		qs, err := l.conn.AcceptStream(l.t.ctx)
		if err != nil {
			break
		}
		l.mu.Lock()
		l.serving++
		l.served++
		l.mu.Unlock()
		l.t.work.Go(func() { // accept itself holds off the end of Close's wait
			l.serve(qs)
			l.release(qs)
		})
	}
	<-l.conn.Context().Done()
	cause := meaning(context.Cause(l.conn.Context()))
	l.mu.Lock()
	if l.retired {
		cause = nil
	}
	l.mu.Unlock()
	l.t.forget(l, cause)
}

// release ends what the handler left open, and only then lets the peer open another
// stream: else a peer that resets its streams at once could have any number of
// handlers.
func (l *link) release(qs *quic.Stream) {
	_ = qs.Close()
	qs.CancelRead(streamCanceled)
	qs.ReleaseStreamCredit()
	l.mu.Lock()
	l.serving--
	l.used = time.Now()
	l.mu.Unlock()
	l.advance()
}

// serve runs the handler of one stream of the peer.
func (l *link) serve(qs *quic.Stream) {
	_ = qs.SetReadDeadline(time.Now().Add(firstByte))
	var first [1]byte
	if _, err := io.ReadFull(qs, first[:]); err != nil {
		qs.CancelWrite(streamCanceled)
		return
	}
	_ = qs.SetReadDeadline(time.Time{})
	c := Class(first[0])
	l.t.roles.RLock()
	h := l.t.handlers[c]
	l.t.roles.RUnlock()
	code := streamUnknown
	if h != nil {
		if l.enter(c) {
			defer l.leave(c)
			h(qs.Context(), l.peer, newStream(l, qs, c, false))
			return
		}
		code = streamOverloaded
	}
	qs.CancelRead(code)
	qs.CancelWrite(code)
}

// enter takes a place among the streams of a class, if there is one.
func (l *link) enter(c Class) bool {
	r := classes[c]
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t.open[c] >= r.perNode || l.classes[c] >= r.perPeer {
		return false
	}
	l.t.open[c]++
	l.classes[c]++
	return true
}

func (l *link) leave(c Class) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.open[c]--
	l.classes[c]--
}

// retire takes l out of use for new streams and lets it end when the last is over.
func (l *link) retire(code quic.ApplicationErrorCode) {
	l.t.withdraw(l, nil)
	l.mu.Lock()
	idle := l.idle
	l.idle = nil
	if !l.retired {
		l.retired, l.goodbye = true, code
	}
	l.mu.Unlock()
	for _, p := range idle {
		p.s.Cancel()
	}
	l.advance()
}

// advance takes the next steps of a retired connection, as far as they are due.
func (l *link) advance() {
	if !l.steps() {
		return
	}
	_ = l.conn.CloseWithError(l.goodbye, "")
}

// steps tells whether it is on us to close now.
func (l *link) steps() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.retired {
		return false
	}
	if !l.drained && l.opening == 0 {
		count := binary.BigEndian.AppendUint64(nil, l.opened)
		l.drained = l.send(frameDrain, count)
	}
	quiet := l.active == 0 && l.serving == 0
	if l.drained && !l.done && quiet && l.theirs >= 0 && l.served >= uint64(l.theirs) {
		l.done = l.send(frameDone, nil)
	}
	return l.dialed && l.done && l.theyre
}

// send puts a frame on the control stream if that is possible without waiting; what
// cannot be sent now is tried again by the next sweep.
func (l *link) send(typ byte, payload []byte) bool {
	return l.control.TryWriteAll(wire.AppendFrame(nil, typ, payload)) == nil
}

// ping makes a peer that has forgotten the connection say so.
func (l *link) ping() { l.send(framePing, make([]byte, pingSize)) }

// listen reads the control stream until the connection ends.
func (l *link) listen() {
	var buf []byte
	for {
		typ, payload, err := wire.ReadFrame(l.r, buf[:0], maxHello)
		if err != nil {
			break
		}
		buf = payload
		switch {
		case typ == frameDrain && len(payload) == 8:
			l.mu.Lock()
			l.theirs = int64(min(binary.BigEndian.Uint64(payload), 1<<62))
			l.mu.Unlock()
			l.retire(connDuplicate)
		case typ == frameDone:
			l.mu.Lock()
			l.theyre = true
			l.mu.Unlock()
			l.advance()
		}
		// Frames of a newer version are skipped.
	}
	// Without its control stream a connection cannot be retired in good order.
	_ = l.conn.CloseWithError(connProtocol, "")
}

// sweep does once a second what time asks for.
func (t *Transport) sweep() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var last [6]uint64
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
			return
		}
		t.mu.Lock()
		links := make([]*link, 0, len(t.links))
		for l := range t.links {
			links = append(links, l)
		}
		t.prune()
		t.mu.Unlock()
		for _, l := range links {
			l.tick()
		}
		last = t.report(last)
	}
}

// tick pings a silent peer, ends what was not used for long and retries what could
// not be sent.
func (l *link) tick() {
	if heard := l.conn.ConnectionStats().PacketsReceived; heard != l.heard {
		l.heard, l.silent = heard, 0
	} else if l.silent++; l.silent >= 2 {
		l.silent = 0
		l.ping()
	}
	limit := unusedCtl
	if l.purpose == bulk {
		limit = unusedBulk
	}
	l.mu.Lock()
	stale := l.expired(time.Now())
	unused := l.active == len(l.idle)+len(stale) && l.serving == 0 && time.Since(l.used) > limit
	l.mu.Unlock()
	for _, p := range stale {
		p.s.Cancel()
	}
	if unused && l.dialed {
		l.retire(connIdle)
	}
	l.advance()
}

// report logs, at most once a second, what was refused since the last report.
func (t *Transport) report(last [6]uint64) [6]uint64 {
	c := &t.seen
	now := [6]uint64{
		c.strangers.Load(), c.misfits.Load(), c.forged.Load(),
		c.overflow.Load(), c.nameless.Load(), c.handshakes.Load(),
	}
	if now != last {
		t.log.Debug("refused so far", "strangers", now[0], "packets of no kind", now[1], "bad seals", now[2],
			"packets beyond the queue", now[3], "packets without a name", now[4], "handshakes beyond the limit", now[5])
	}
	return now
}
