package transport

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"
)

const (
	firstPause = 250 * time.Millisecond
	lastPause  = 5 * time.Second
	// Opening a stream meets a dying connection at most this often in a row.
	openTries = 4
)

// target is whom to reach: a name that the address book knows, or an address, with a
// name that must then be met there or none.
type target struct {
	name string
	addr netip.AddrPort // invalid: ask the address book
	boot uint64         // at least this start of the node
}

func (w target) String() string {
	if w.name == "" {
		return w.addr.String()
	}
	return w.name
}

// attempt is one dial that any number of callers wait for.
type attempt struct {
	done chan struct{}
	link *link // the one to use, if err is nil; set before done
	err  error

	cancel  context.CancelFunc // of a dial by address; nil for others
	waiters int                // of a dial by address; guarded by Transport.mu
}

// backoff is when a peer may be dialed again after failures.
type backoff struct {
	pause time.Duration
	until time.Time
	to    target // the pause is void once the address book says something else
}

// fail doubles the pause, and spreads it by a quarter so that nodes that lost the
// same peer do not come back together.
func (b *backoff) fail(to target) {
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	spread := time.Duration(rand.Int64N(int64(b.pause / 2)))
	b.until = time.Now().Add(b.pause - b.pause/4 + spread)
	b.to = to
}

// Open opens a stream to a peer, and a connection if there is none. It waits for a
// dial in progress, and between dials for a pause that grows to 5 s, so a caller may
// call again at once. It waits also while the peer has 512 streams from us.
//
// It is [ErrUnknownPeer] if the address book does not know the name and the peer has
// not connected itself, [ErrSelf] for this node, a *[PeerDownError] if the dial
// failed, [ErrClosed], or Is the cause of ctx. Whether the peer takes the stream
// shows at the first read.
func (t *Transport) Open(ctx context.Context, to string, c Class) (*Stream, error) {
	if !c.framed() {
		return nil, fmt.Errorf("open stream to %q: %v is not for frames", to, c)
	}
	s, err := t.openAt(ctx, target{name: to}, c)
	if err != nil {
		return nil, fmt.Errorf("open %v stream to %q: %w", c, to, err)
	}
	return s, nil
}

func (t *Transport) openAt(ctx context.Context, to target, c Class) (*Stream, error) {
	var err error
	for range openTries {
		var l *link
		if l, err = t.connect(ctx, to, classes[c].purpose); err != nil {
			return nil, err
		}
		var s *Stream
		if s, err = l.open(ctx, c); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, &PeerDownError{Name: to.String(), Cause: err}
}

// connect is the connection for new streams to a peer; it dials if there is none.
func (t *Transport) connect(ctx context.Context, to target, p purpose) (*link, error) {
	for {
		l, w, err := t.reach(to, p)
		if err != nil || l != nil {
			return l, err
		}
		if err := w.wait(ctx); err != nil {
			t.abandon(to, w.attempt)
			return nil, err
		}
		if w.attempt == nil || !w.attempt.over() {
			continue // another try is due, or the peer has connected itself
		}
		name := to.name
		if name == "" && w.attempt.err == nil {
			name = w.attempt.link.peer.Name
		}
		if l := t.current(name, p); l != nil && l.peer.Boot >= w.boot {
			return l, nil
		}
		if err := w.attempt.err; err != nil {
			return nil, &PeerDownError{Name: to.String(), Cause: err}
		}
	}
}

// waiting is what a caller without a connection waits for: an attempt, or if there
// is none a pause, or that the peer connects itself.
type waiting struct {
	attempt *attempt
	pause   time.Duration
	up      <-chan struct{}
	boot    uint64 // an older start of the node does not do
}

// wait fails only when ctx ends.
func (w *waiting) wait(ctx context.Context) error {
	var done <-chan struct{}
	var pause <-chan time.Time
	if w.attempt != nil {
		done = w.attempt.done
	} else {
		timer := time.NewTimer(w.pause)
		defer timer.Stop()
		pause = timer.C
	}
	select {
	case <-done:
	case <-pause:
	case <-w.up:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// current is the connection for new streams to a name, nil if there is none.
func (t *Transport) current(name string, p purpose) *link {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.peers[name]; known != nil {
		return known.live[p]
	}
	return nil
}

// reach is a live connection, or what to wait for; it begins a dial when one is due.
func (t *Transport) reach(to target, p purpose) (*link, *waiting, error) {
	if to.name == t.cfg.Name {
		return nil, nil, ErrSelf
	}
	located := to.addr.IsValid()
	if !located {
		to, located = t.lookup(to)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closing {
		return nil, nil, ErrClosed
	}
	if to.name == "" {
		return t.reachAddr(to, p)
	}
	if known := t.peers[to.name]; known != nil && known.live[p] != nil && known.boot >= to.boot {
		return known.live[p], nil, nil
	}
	if !located {
		return nil, nil, ErrUnknownPeer
	}
	return nil, t.redial(to, p), nil
}

// lookup asks the address book, outside of every lock of ours.
func (t *Transport) lookup(to target) (target, bool) {
	book := t.book.Load()
	if book == nil {
		return to, false
	}
	addr, boot, ok := (*book).Lookup(to.name)
	if ok {
		to.addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
		to.boot = max(to.boot, boot)
	}
	return to, ok && addr.IsValid()
}

// redial joins or begins the dial of a named peer, or tells how long it must wait.
// The caller holds t.mu.
func (t *Transport) redial(to target, p purpose) *waiting {
	who := t.peer(to.name)
	w := &waiting{attempt: who.dials[p], up: who.up, boot: to.boot}
	if w.attempt != nil {
		return w
	}
	again := &who.retry[p]
	if again.to != to {
		again.until = time.Time{}
	}
	// Never the whole pause at once, so that a changed address is seen soon.
	if w.pause = min(time.Until(again.until), firstPause); w.pause > 0 {
		return w
	}
	w.attempt = &attempt{done: make(chan struct{})}
	who.dials[p] = w.attempt
	t.spawn(func() {
		l, err := t.dial(t.ctx, to, p)
		t.mu.Lock()
		defer t.mu.Unlock()
		who.dials[p] = nil
		if err != nil && !errors.Is(err, ErrClosed) {
			again.fail(to)
		}
		w.attempt.finish(l, err)
	})
	return w
}

// reachAddr is reach for whoever is at an address. The caller holds t.mu.
func (t *Transport) reachAddr(to target, p purpose) (*link, *waiting, error) {
	for l := range t.links {
		if l.peer.Addr == to.addr && t.peers[l.peer.Name].live[p] == l {
			return l, nil, nil
		}
	}
	if a := t.joins[to.addr]; a != nil {
		a.waiters++
		return nil, &waiting{attempt: a}, nil
	}
	ctx, cancel := context.WithCancel(t.ctx)
	a := &attempt{done: make(chan struct{}), cancel: cancel, waiters: 1}
	t.joins[to.addr] = a
	t.spawn(func() {
		defer cancel()
		l, err := t.dial(ctx, to, p)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.forgetJoin(to, a)
		a.finish(l, err)
	})
	return nil, &waiting{attempt: a}, nil
}

// abandon ends a dial by address for which nobody waits any more. A seed that was not
// up yet when the dial began would be met only at QUIC's next retransmission, some
// 200, 600 or 1400 ms after it; a fresh dial meets it at once.
func (t *Transport) abandon(to target, a *attempt) {
	if a == nil || a.cancel == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.waiters--; a.waiters == 0 {
		t.forgetJoin(to, a)
		a.cancel()
	}
}

func (t *Transport) forgetJoin(to target, a *attempt) {
	if t.joins[to.addr] == a {
		delete(t.joins, to.addr)
	}
}

// over tells whether the attempt has ended.
func (a *attempt) over() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (a *attempt) finish(l *link, err error) {
	a.link, a.err = l, err
	close(a.done)
}

// dial makes one connection and exchanges Hellos over it.
func (t *Transport) dial(ctx context.Context, to target, p purpose) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addr := net.UDPAddrFromAddrPort(to.addr)
	conn, err := t.quic.Dial(ctx, addr, t.clientTLS(to.name), t.quicConfig(p))
	if err != nil {
		return nil, fmt.Errorf("dial %v: %w", to.addr, t.refusal(err))
	}
	l, err := t.greet(ctx, conn, to, p)
	if err != nil {
		_ = conn.CloseWithError(reason(err), "")
		t.windows.release(conn)
		t.mu.Lock()
		delete(t.fresh, conn)
		t.mu.Unlock()
		return nil, fmt.Errorf("greet %v: %w", to.addr, t.refusal(err))
	}
	return l, nil
}

// refusal translates why a connection did not come to be.
func (t *Transport) refusal(err error) error {
	if t.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	tr, ok := errors.AsType[*quic.TransportError](err)
	switch {
	case ok && tr.ErrorCode == quic.ConnectionRefused:
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	case !ok || !tr.ErrorCode.IsCryptoError():
		return meaning(err)
	case tr.ErrorCode == cryptoNoProtocol:
		return fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return fmt.Errorf("%w: %w", ErrIdentity, err)
}

// cryptoNoProtocol is the TLS alert no_application_protocol (RFC 7301) as QUIC codes
// alerts (RFC 9001 section 4.8).
const cryptoNoProtocol quic.TransportErrorCode = 0x100 + 120

// reason is the code by which the peer learns why we end a connection before use.
func reason(err error) quic.ApplicationErrorCode {
	switch {
	case errors.Is(err, ErrStale):
		return connSuperseded
	case errors.Is(err, ErrIdentity), errors.Is(err, ErrSelf):
		return connIdentity
	case errors.Is(err, ErrVersion):
		return connVersion
	case errors.Is(err, ErrOverloaded):
		return connLimit
	case errors.Is(err, ErrClosed):
		return connShutdown
	}
	return connProtocol
}
