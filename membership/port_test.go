package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport"
)

// fakeWire is a transport whose answers the test gives.
type fakeWire struct {
	packets chan transport.Packet
	conns   chan net.Conn
	write   error
	dial    func(ctx context.Context) (net.Conn, error)
}

func newFakeWire() *fakeWire {
	return &fakeWire{packets: make(chan transport.Packet), conns: make(chan net.Conn)}
}

func (f *fakeWire) Self() transport.Peer {
	return transport.Peer{Name: "me", Boot: 1, Addr: netip.MustParseAddrPort("10.0.0.9:7000")}
}
func (f *fakeWire) SetGossipName(string)                             {}
func (f *fakeWire) WritePacket([]byte, netip.AddrPort, string) error { return f.write }
func (f *fakeWire) Packets() <-chan transport.Packet                 { return f.packets }
func (f *fakeWire) GossipConns() <-chan net.Conn                     { return f.conns }
func (f *fakeWire) DialGossip(ctx context.Context, _ netip.AddrPort, _ string) (net.Conn, error) {
	return f.dial(ctx)
}

var peerAddr = memberlist.Address{Addr: "10.0.0.1:7000", Name: "a#1"}

// TestOnlyLocalWriteErrorsReachMemberlist guards the error-type trap: memberlist
// takes a write error that is no plain *net.OpError for its own fault, drops the probe
// and never suspects the peer.
func TestOnlyLocalWriteErrorsReachMemberlist(t *testing.T) {
	local := &net.OpError{Net: "udp", Op: "write", Err: errors.New("message too long")}
	for _, test := range []struct{ from, want error }{
		{nil, nil},
		{local, local},
		{errors.New("connection is dead"), nil},
		{fmt.Errorf("wrapped: %w", local), nil},
		{&net.OpError{Net: "tcp", Op: "dial", Err: errors.New("refused")}, nil},
		{&net.OpError{Net: "udp", Op: "read", Err: errors.New("refused")}, nil},
	} {
		w := newFakeWire()
		w.write = test.from
		p := newPort(w)
		_, err := p.WriteToAddress([]byte("x"), peerAddr)
		require.Equal(t, test.want, err, "%v", test.from)
		require.NoError(t, p.Shutdown())
	}
}

func TestPacketsThatNobodyTakesAreLostAndHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeWire()
		p := newPort(w)
		for i := range 1000 {
			w.packets <- transport.Packet{Data: []byte{byte(i)}, From: own}
		}
		synctest.Wait()
		require.Len(t, p.packets, cap(p.packets))
		require.Equal(t, own.String(), (<-p.packets).From.String())
		require.NoError(t, p.Shutdown())
	})
}

func TestShutdownEndsDialsAndOpenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeWire()
		near, far := net.Pipe()
		defer far.Close()
		p := newPort(w)
		go func() { w.conns <- near }()
		in := <-p.StreamCh()
		w.dial = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		start, done := time.Now(), make(chan error)
		go func() {
			_, err := p.DialAddressTimeout(peerAddr, time.Hour)
			done <- err
		}()
		go func() {
			_, err := in.Read(make([]byte, 1))
			done <- err
		}()
		synctest.Wait()
		require.NoError(t, p.Shutdown())
		require.Error(t, <-done)
		require.Error(t, <-done)
		require.Zero(t, time.Since(start))
		require.NoError(t, p.Shutdown())

		w.dial = func(context.Context) (net.Conn, error) { return far, nil }
		late, err := p.DialAddressTimeout(peerAddr, time.Hour)
		require.NoError(t, err)
		_, err = late.Read(make([]byte, 1))
		require.Error(t, err, "a stream that opens after Shutdown is closed")
	})
}

func TestJoinsByAddressAreNoMorePatientThanTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFakeWire()
		w.dial = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		p := newPort(w)
		p.patient.Store(int64(time.Second))
		for name, want := range map[string]time.Duration{"": time.Second, "a#1": 3 * time.Second} {
			start := time.Now()
			_, err := p.DialAddressTimeout(memberlist.Address{Addr: "10.0.0.1:1", Name: name}, 3*time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, want, time.Since(start))
		}
		require.NoError(t, p.Shutdown())
	})
}
