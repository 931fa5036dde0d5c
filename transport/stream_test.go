package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport/internal/identity"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestFramesBeyondTheLimitAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassRaftCtl, echo)
		s, err := a.Open(within(t, time.Second), "b", ClassRaftCtl)
		require.NoError(t, err)
		require.ErrorIs(t, s.WriteFrames(appendFrame(nil, 1, make([]byte, 64<<10+1))), ErrTooLarge)
		require.ErrorIs(t, s.WriteFrames([]byte{0, 0, 0, 9, 1}), ErrMalformed)
		require.NoError(t, s.WriteFrames(appendFrame(nil, 1, make([]byte, 64<<10))), "the stream still works")
		_, payload, err := s.ReadFrame()
		require.NoError(t, err)
		require.Len(t, payload, 64<<10)
		s.Cancel()
	})
}

func TestClassWithoutHandlerIsRefusedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassCommand, echo)
		s, err := a.Open(within(t, time.Second), "b", ClassWatch)
		require.NoError(t, err)
		_, _, err = s.ReadFrame()
		require.ErrorIs(t, err, ErrUnknownClass)
		_, err = ask(within(t, time.Second), a, "b", "x")
		require.NoError(t, err)
		for _, c := range []Class{classRPC, classGossip, classControl, 0x77} {
			_, err = a.Open(t.Context(), "b", c)
			require.Error(t, err)
		}
	})
}

func TestStuckHandlersLeaveOtherClassesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		free := make(chan struct{})
		b.Handle(ClassCommand, func(context.Context, Peer, *Stream) { <-free })
		b.Handle(ClassWatch, echo)
		var stuck []*Stream
		for range classes[ClassCommand].perPeer {
			s, err := a.Open(within(t, time.Second), "b", ClassCommand)
			require.NoError(t, err)
			stuck = append(stuck, s)
		}
		time.Sleep(time.Second)
		refused := func() bool {
			s, err := a.Open(within(t, time.Second), "b", ClassCommand)
			require.NoError(t, err)
			require.NoError(t, s.SetDeadline(time.Now().Add(time.Second)))
			_, _, err = s.ReadFrame()
			s.Cancel()
			return errors.Is(err, ErrOverloaded)
		}
		require.True(t, refused())
		for _, s := range stuck {
			s.Cancel()
		}
		time.Sleep(time.Second)
		require.True(t, refused(), "a reset does not free the place of a handler that still runs")
		w, err := a.Open(within(t, time.Second), "b", ClassWatch)
		require.NoError(t, err)
		require.NoError(t, w.WriteFrames(appendFrame(nil, 1, nil)))
		_, _, err = w.ReadFrame()
		require.NoError(t, err)
		w.Cancel()
		close(free)
		time.Sleep(time.Second)
		require.False(t, refused())
	})
}

// A peer that opens and resets streams as fast as it can gets no more handlers than
// its limit, and everybody else is still served.
func TestRapidResetGetsNoMoreHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, a, b, book := memPair(t)
		var running, most atomic.Int64
		free := make(chan struct{})
		b.Handle(ClassWatch, func(context.Context, Peer, *Stream) {
			most.Store(max(most.Load(), running.Add(1)))
			<-free
			running.Add(-1)
		})
		b.Handle(ClassCommand, echo)
		for range 5000 {
			s, err := a.Open(within(t, 5*time.Second), "b", ClassWatch)
			require.NoError(t, err)
			s.Cancel()
		}
		require.LessOrEqual(t, most.Load(), int64(classes[ClassWatch].perPeer))
		c := mem(t, net, "c", 1, "10.0.0.3:7000", book)
		_, err := ask(within(t, time.Second), c, "b", "x")
		require.NoError(t, err)
		close(free)
	})
}

func TestHandlerEndsWithItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		ended := make(chan time.Time, 1)
		b.Handle(ClassCommand, func(ctx context.Context, from Peer, s *Stream) {
			<-ctx.Done()
			ended <- time.Now()
		})
		s, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)
		time.Sleep(time.Second)
		began := time.Now()
		s.Cancel()
		require.Less(t, (<-ended).Sub(began), 10*time.Millisecond)
	})
}

func TestHandlerThatReturnsEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassCommand, func(_ context.Context, _ Peer, s *Stream) {
			_ = s.WriteFrames(appendFrame(nil, 1, []byte("bye")))
		})
		s, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)
		_, payload, err := s.ReadFrame()
		require.NoError(t, err)
		require.Equal(t, "bye", string(payload))
		_, _, err = s.ReadFrame()
		require.Equal(t, io.EOF, err)
		time.Sleep(100 * time.Millisecond)
		require.ErrorIs(t, s.WriteFrames(appendFrame(nil, 1, nil)), ErrCanceled)
	})
}

func TestDeadlinesOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassCommand, func(ctx context.Context, _ Peer, s *Stream) { <-ctx.Done() })
		s, err := a.Open(within(t, time.Second), "b", ClassCommand)
		require.NoError(t, err)
		defer s.Cancel()
		require.NoError(t, s.SetDeadline(time.Now().Add(time.Second)))
		_, _, err = s.ReadFrame()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, s.SetDeadline(time.Now().Add(time.Second)))
		for err = nil; err == nil; {
			err = s.WriteFrames(appendFrame(nil, 1, make([]byte, 1<<20)))
		}
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nobody reads")
	})
}

// member is a peer that holds the secret and otherwise does as it likes.
type member struct {
	quic *quic.Transport
	conn *quic.Conn
}

func newMember(t *testing.T, mem *memnet.Net, at string, to *Transport) *member {
	pc, err := mem.Listen(at)
	require.NoError(t, err)
	id, err := identity.New("test", identity.Node{Name: "evil", Boot: 1}, [][]byte{secretA})
	require.NoError(t, err)
	m := &member{quic: &quic.Transport{Conn: &plainFilter{PacketConn: pc, t: to}}}
	m.conn, err = m.quic.Dial(within(t, 5*time.Second), net.UDPAddrFromAddrPort(to.Self().Addr),
		id.Client(protocol, "b"), &quic.Config{InitialPacketSize: 1200})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = m.conn.CloseWithError(0, "")
		_ = m.quic.Close()
		_ = pc.Close()
	})
	return m
}

// send writes b on a new stream and returns it.
func (m *member) send(t *testing.T, b []byte) *quic.Stream {
	s, err := m.conn.OpenStreamSync(within(t, 5*time.Second))
	require.NoError(t, err)
	_, err = s.Write(b)
	require.NoError(t, err)
	return s
}

// helloOf is what an honest node called evil would say.
func helloOf(t *testing.T, change func(*hello)) []byte {
	h := hello{Oldest: 1, Newest: 1, Name: "evil", Boot: 1, Addr: "10.0.0.66:1"}
	change(&h)
	body, err := marshal(&h)
	require.NoError(t, err)
	return append([]byte{byte(classControl)}, appendFrame(nil, frameHello, body)...)
}

func TestBadHellosEndTheConnection(t *testing.T) {
	for name, first := range map[string][]byte{
		"other class first":    {byte(ClassCommand)},
		"garbage":              append([]byte{byte(classControl)}, 0xff, 0xff, 0xff, 0xff, 1, 2, 3),
		"other frame":          append([]byte{byte(classControl)}, appendFrame(nil, framePing, nil)...),
		"no msgpack":           append([]byte{byte(classControl)}, appendFrame(nil, frameHello, []byte{0xc1})...),
		"another's name":       helloOf(t, func(h *hello) { h.Name = "a" }),
		"another boot":         helloOf(t, func(h *hello) { h.Boot = 9 }),
		"a later version":      helloOf(t, func(h *hello) { h.Oldest, h.Newest = 7, 9 }),
		"no address":           helloOf(t, func(h *hello) { h.Addr = "here" }),
		"an unknown purpose":   helloOf(t, func(h *hello) { h.Purpose = 7 }),
		"nothing, for so long": {byte(classControl)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mem, _, b, _ := memPair(t)
				b.Handle(ClassCommand, func(context.Context, Peer, *Stream) { t.Error("a handler ran") })
				m := newMember(t, mem, "10.0.0.66:1", b)
				m.send(t, first)
				select {
				case <-m.conn.Context().Done():
				case <-time.After(10 * time.Second):
					t.Fatal("the connection lives")
				}
				require.Zero(t, count(b))
			})
		})
	}
}

func TestBadBytesEndTheirStreamOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, _, b, _ := memPair(t)
		b.Handle(ClassRaftCtl, echo)
		b.Handle(ClassCommand, echo)
		m := newMember(t, mem, "10.0.0.66:1", b)
		control := m.send(t, helloOf(t, func(*hello) {}))
		_, err := control.Read(make([]byte, 1))
		require.NoError(t, err)
		for name, c := range map[string]struct {
			b    []byte
			code quic.StreamErrorCode
		}{
			"frame too large":     {[]byte{byte(ClassRaftCtl), 0, 1, 0, 2, 1}, streamTooLarge},
			"frame without type":  {[]byte{byte(ClassCommand), 0, 0, 0, 0, 0}, streamMalformed},
			"unknown class":       {[]byte{0x99}, streamUnknown},
			"second control":      {[]byte{byte(classControl)}, streamUnknown},
			"call without sense":  {append([]byte{byte(classRPC)}, appendFrame(nil, 9, nil)...), streamMalformed},
			"call without header": {append([]byte{byte(classRPC)}, appendFrame(nil, frameLast, []byte{0xff})...), streamMalformed},
		} {
			s := m.send(t, c.b)
			_, err := io.ReadAll(s)
			var reset *quic.StreamError
			require.ErrorAs(t, err, &reset, name)
			require.Equal(t, c.code, reset.ErrorCode, name)
			s.CancelWrite(0)
		}
		s := m.send(t, append([]byte{byte(ClassCommand)}, appendFrame(nil, 1, []byte("still here"))...))
		got := make([]byte, 15)
		_, err = io.ReadFull(s, got)
		require.NoError(t, err)
	})
}

func TestStreamThatSaysNothingIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, _, b, _ := memPair(t)
		m := newMember(t, mem, "10.0.0.66:1", b)
		m.send(t, helloOf(t, func(*hello) {}))
		s, err := m.conn.OpenStreamSync(t.Context())
		require.NoError(t, err)
		require.NoError(t, s.Close()) // it exists, without a class
		_, err = s.Read(make([]byte, 1))
		require.Error(t, err)
	})
}

// Whatever a member sends on any class, the node lives and serves others.
func TestNoiseHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, a, b, _ := memPair(t)
		for _, c := range []Class{ClassRaftCtl, ClassRaftLog, ClassCommand, ClassWatch, ClassBulk} {
			b.Handle(c, echo)
		}
		b.Answer("echo", func(_ context.Context, _ Peer, req []byte) ([]byte, error) { return req, nil })
		go func() {
			for c := range b.GossipConns() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		m := newMember(t, mem, "10.0.0.66:1", b)
		m.send(t, helloOf(t, func(*hello) {}))
		for range 100 {
			for c := range classes {
				noise := make([]byte, 200)
				_, _ = rand.Read(noise)
				noise[0] = byte(c)
				copy(noise[1:], appendFrame(nil, noise[9]&3, noise[10:10+noise[8]%64]))
				s := m.send(t, noise)
				_ = s.Close()
				_, _ = io.Copy(io.Discard, s)
			}
		}
		b.Handle(ClassCommand, echo)
		_, err := ask(within(t, time.Second), a, "b", "x")
		require.NoError(t, err)
		resp, err := a.Call(within(t, time.Second), "b", "echo", []byte("y"))
		require.NoError(t, err)
		require.Equal(t, "y", string(resp))
	})
}

// FuzzHello: no bytes make a Hello that names another node than its certificate.
func FuzzHello(f *testing.F) {
	good, err := marshal(&hello{Oldest: 1, Newest: 3, Name: "n", Boot: 7, Addr: "[::1]:7946", Purpose: 1})
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte{0x81, 0xa1, 'i', 0xa1, 'n'})
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		who, p, err := parseHello(b, identity.Node{Name: "n", Boot: 7})
		if err != nil {
			return
		}
		require.Equal(t, "n", who.Name)
		require.Equal(t, uint64(7), who.Boot)
		require.True(t, who.Addr.IsValid())
		require.Less(t, p, purposes)
	})
}
