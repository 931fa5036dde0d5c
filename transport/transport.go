package transport

import (
	"context"
	"net"
	"net/netip"
	"time"
)

const rpcFrame = 64 << 10

type Transport struct{ cfg Config }
type Stream struct{}
type Packet struct {
	Data []byte
	From netip.AddrPort
	At   time.Time
}

func New(cfg Config) (*Transport, error)   { return &Transport{cfg: cfg}, cfg.check() }
func (t *Transport) Use(book AddressBook)  {}
func (t *Transport) Self() Peer            { return Peer{t.cfg.Name, t.cfg.Boot, t.cfg.Advertise} }
func (t *Transport) Watch(func(PeerEvent)) {}
func (t *Transport) Close() error          { return t.cfg.Conn.Close() }
func (t *Transport) Open(ctx context.Context, to string, c Class) (*Stream, error) {
	return nil, ErrClosed
}
func (t *Transport) Handle(c Class, h func(ctx context.Context, from Peer, s *Stream)) {}
func (t *Transport) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	return nil, &unsentError{ErrClosed}
}
func (t *Transport) Answer(method string, h func(ctx context.Context, from Peer, req []byte) ([]byte, error)) {
}
func (t *Transport) WritePacket(b []byte, to netip.AddrPort, name string) error { return nil }
func (t *Transport) Packets() <-chan Packet                                     { return nil }
func (t *Transport) SetGossipName(name string)                                  {}
func (t *Transport) DialGossip(ctx context.Context, to netip.AddrPort, name string) (net.Conn, error) {
	return nil, ErrClosed
}
func (t *Transport) GossipConns() <-chan net.Conn { return nil }

func (s *Stream) WriteFrames(frames []byte) error                  { return ErrClosed }
func (s *Stream) ReadFrame() (typ byte, payload []byte, err error) { return 0, nil, ErrClosed }
func (s *Stream) Close() error                                     { return nil }
func (s *Stream) Cancel()                                          {}
func (s *Stream) SetDeadline(t time.Time) error                    { return nil }
func (s *Stream) SetReadDeadline(t time.Time) error                { return nil }
func (s *Stream) SetWriteDeadline(t time.Time) error               { return nil }
