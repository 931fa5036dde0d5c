package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport/internal/identity"
)

const (
	oldestVersion = 1
	newestVersion = 1
	maxHello      = 4 << 10
	firstByte     = 5 * time.Second // patience for the first byte of a stream
)

// Frames of the control stream.
const (
	frameHello byte = iota + 1
	framePing
	frameDrain
	frameDone
)

// hello is the first message of each end on a connection. Fields may be added; a
// reader skips those it does not know.
type hello struct {
	Oldest  uint16 `msgpack:"o"` // versions of this protocol that the sender speaks
	Newest  uint16 `msgpack:"n"`
	Name    string `msgpack:"i"`
	Boot    uint64 `msgpack:"b"`
	Addr    string `msgpack:"a"` // what peers dial
	Purpose uint8  `msgpack:"p"` // of the dialer; the answer repeats it
}

func (t *Transport) hello(p purpose) ([]byte, error) {
	body, err := wire.Marshal(&hello{
		Oldest:  oldestVersion,
		Newest:  newestVersion,
		Name:    t.cfg.Name,
		Boot:    t.cfg.Boot,
		Addr:    t.cfg.Advertise.String(),
		Purpose: uint8(p),
	})
	return wire.AppendFrame(nil, frameHello, body), err
}

// parseHello checks a Hello against the certificate it came with.
func parseHello(body []byte, cert identity.Node) (Peer, purpose, error) {
	var h hello
	if err := wire.Unmarshal(body, &h); err != nil {
		return Peer{}, 0, err
	}
	addr, err := netip.ParseAddrPort(h.Addr)
	switch {
	case h.Oldest > newestVersion || h.Newest < oldestVersion:
		return Peer{}, 0, fmt.Errorf("peer speaks versions %d to %d, we %d to %d: %w",
			h.Oldest, h.Newest, oldestVersion, newestVersion, ErrVersion)
	case h.Name != cert.Name || h.Boot != cert.Boot:
		return Peer{}, 0, fmt.Errorf("hello of %q boot %d under the certificate of %q boot %d: %w",
			h.Name, h.Boot, cert.Name, cert.Boot, ErrIdentity)
	case err != nil:
		return Peer{}, 0, fmt.Errorf("advertised address %q: %w", h.Addr, ErrMalformed)
	case h.Purpose >= uint8(purposes):
		return Peer{}, 0, fmt.Errorf("connection for purpose %d: %w", h.Purpose, ErrVersion)
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	return Peer{Name: h.Name, Boot: h.Boot, Addr: addr}, purpose(h.Purpose), nil
}

// greet is the dialer's half: it says Hello and waits for the answer. Only that shows
// that the peer has accepted our certificate, which TLS 1.3 tells the client late.
func (t *Transport) greet(ctx context.Context, conn *quic.Conn, to target, p purpose) (*link, error) {
	if !t.remember(conn) {
		return nil, ErrClosed
	}
	cert, err := t.certificate(conn)
	if err != nil {
		return nil, err
	}
	control, err := conn.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		_ = errors.Join(control.SetReadDeadline(end), control.SetWriteDeadline(end))
	}
	ours, err := t.hello(p)
	if err != nil {
		return nil, err
	}
	if _, err := control.Write(append([]byte{byte(classControl)}, ours...)); err != nil {
		return nil, err
	}
	l := newLink(t, conn, control, true)
	if l.peer, l.purpose, err = l.readHello(cert); err != nil {
		return nil, err
	}
	if l.peer.Boot < to.boot {
		return nil, fmt.Errorf("boot %d of %q, want %d: %w", l.peer.Boot, l.peer.Name, to.boot, ErrStale)
	}
	if l.purpose != p {
		return nil, fmt.Errorf("asked for %v, got %v: %w", p, l.purpose, ErrMalformed)
	}
	_ = errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}))
	return l, t.install(l)
}

// remember makes Close end a connection that is not in use yet. It is false once
// Close has begun.
func (t *Transport) remember(conn *quic.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closing {
		t.fresh[conn] = struct{}{}
	}
	return !t.closing
}

func (t *Transport) certificate(conn *quic.Conn) (identity.Node, error) {
	certs := conn.ConnectionState().TLS.PeerCertificates
	if len(certs) == 0 {
		return identity.Node{}, ErrIdentity
	}
	n, err := t.id.Of(certs[0])
	switch {
	case err != nil:
		return n, fmt.Errorf("%w: %w", ErrIdentity, err)
	case n.Name == t.cfg.Name:
		return n, ErrSelf
	}
	return n, nil
}

func (l *link) readHello(cert identity.Node) (Peer, purpose, error) {
	typ, body, err := wire.ReadFrame(l.r, nil, maxHello)
	if err != nil {
		return Peer{}, 0, err
	}
	if typ != frameHello {
		return Peer{}, 0, fmt.Errorf("frame %d before hello: %w", typ, ErrMalformed)
	}
	return parseHello(body, cert)
}

// welcome is the acceptor's half. Nothing of the peer runs before its Hello is good.
func (t *Transport) welcome(conn *quic.Conn) {
	err := t.answerHello(conn)
	if err == nil {
		return
	}
	t.log.Debug("connection refused", "from", conn.RemoteAddr().String(), "reason", err)
	_ = conn.CloseWithError(reason(err), "")
	t.windows.release(conn)
	t.mu.Lock()
	delete(t.fresh, conn)
	t.mu.Unlock()
}

func (t *Transport) answerHello(conn *quic.Conn) error {
	cert, err := t.certificate(conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.ctx, firstByte)
	defer cancel()
	control, err := conn.AcceptStream(ctx)
	if err != nil {
		return err
	}
	_ = errors.Join(control.SetReadDeadline(time.Now().Add(firstByte)), control.SetWriteDeadline(time.Now().Add(firstByte)))
	var class [1]byte
	if _, err := io.ReadFull(control, class[:]); err != nil {
		return err
	}
	if Class(class[0]) != classControl {
		return fmt.Errorf("first stream is %v: %w", Class(class[0]), ErrMalformed)
	}
	l := newLink(t, conn, control, false)
	if l.peer, l.purpose, err = l.readHello(cert); err != nil {
		return err
	}
	ours, err := t.hello(l.purpose)
	if err != nil {
		return err
	}
	if t.outdated(l.peer) {
		return ErrStale
	}
	// Before install, which may put other frames on the control stream. What the
	// dialer sends already waits in quic-go until we accept streams.
	if _, err := control.Write(ours); err != nil {
		return err
	}
	_ = errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{}))
	return t.install(l)
}

// outdated tells whether a newer start of the peer was seen.
func (t *Transport) outdated(who Peer) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.peers[who.Name]
	return known != nil && who.Boot < known.boot
}

func newLink(t *Transport, conn *quic.Conn, control *quic.Stream, dialed bool) *link {
	return &link{
		t:       t,
		conn:    conn,
		control: control,
		r:       bufio.NewReaderSize(control, 512),
		dialed:  dialed,
		since:   time.Now(),
		used:    time.Now(),
		theirs:  -1,
		classes: map[Class]int{},
		calls:   make(chan struct{}, maxCallsToPeer),
	}
}
