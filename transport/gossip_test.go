package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport/internal/seal"
	"github.com/clatter-go/clatter/transport/memnet"
)

func TestOnlyPacketsForUsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, a, b, _ := memPair(t)
		raw, err := mem.Listen("10.0.0.66:1")
		require.NoError(t, err)
		defer raw.Close()
		to := net.UDPAddrFromAddrPort(b.Self().Addr)
		stranger, err := seal.New("test", [][]byte{secretB})
		require.NoError(t, err)
		for _, packet := range [][]byte{
			{}, {0x00}, {seal.First}, {0x02, 1, 2}, {0x3f},
			make([]byte, 100),
			stranger.Seal(nil, []byte("x"), "b#1"),
			a.gossip.sealer.Seal(nil, []byte("x"), "b#0"),
			a.gossip.sealer.Seal(nil, []byte("x"), "a#1"),
			{0x40}, {0xc0, 0, 0, 0, 1}, make([]byte, 1200),
		} {
			_, err := raw.WriteTo(packet, to)
			require.NoError(t, err)
		}
		require.NoError(t, a.WritePacket([]byte("nameless"), b.Self().Addr, ""))
		require.NoError(t, a.WritePacket([]byte("right"), b.Self().Addr, "b#1"))
		require.Equal(t, "right", string((<-b.Packets()).Data))
		b.SetGossipName("b#2")
		require.NoError(t, a.WritePacket([]byte("right again"), b.Self().Addr, "b#2"))
		require.Equal(t, "right again", string((<-b.Packets()).Data))
		require.Empty(t, b.Packets())
		require.Equal(t, uint64(4), b.seen.forged.Load())
		require.Equal(t, uint64(5), b.seen.misfits.Load())
	})
}

func TestPacketsBeyondTheQueueAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		b.Handle(ClassCommand, echo)
		for range 3 * maxPackets {
			require.NoError(t, a.WritePacket([]byte("x"), b.Self().Addr, "b#1"))
		}
		got, err := ask(within(t, time.Second), a, "b", "streams go on")
		require.NoError(t, err)
		require.Equal(t, "streams go on", got)
		require.Len(t, b.Packets(), maxPackets)
		require.Equal(t, uint64(2*maxPackets), b.seen.overflow.Load())
	})
}

// broken is a socket whose writes fail.
type broken struct {
	net.PacketConn
	err error
}

func (b *broken) WriteTo([]byte, net.Addr) (int, error) { return 0, b.err }

func TestOnlyLocalWritesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, book := memnet.New(1), &pages{}
		pc, err := mem.Listen("10.0.0.1:7000")
		require.NoError(t, err)
		socket := &broken{PacketConn: pc, err: errors.New("no buffer space")}
		a := start(t, config(socket, "a", 1), book)
		check := func(err, want error) {
			op, ok := err.(*net.OpError) // memberlist asks for exactly this type
			require.True(t, ok, "%T", err)
			require.Equal(t, "udp", op.Net)
			require.Equal(t, "write", op.Op)
			require.ErrorIs(t, err, want)
		}
		check(a.WritePacket([]byte("x"), a.Self().Addr, "b#1"), socket.err)
		require.NoError(t, a.Close())
		check(a.WritePacket([]byte("x"), a.Self().Addr, "b#1"), net.ErrClosed)
	})
}

func TestGossipStreamsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		var conns []net.Conn
		for range classes[classGossip].perPeer {
			c, err := a.DialGossip(within(t, time.Second), b.Self().Addr, "")
			require.NoError(t, err)
			conns = append(conns, c)
			_, err = c.Write([]byte("x"))
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		excess, err := a.DialGossip(within(t, time.Second), b.Self().Addr, "b#1")
		require.NoError(t, err)
		_, err = excess.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrOverloaded)
		for _, c := range conns {
			require.NoError(t, c.Close())
			require.NoError(t, greeted(t, b).Close())
		}
		time.Sleep(time.Second)
		c, err := a.DialGossip(within(t, time.Second), b.Self().Addr, "b#1")
		require.NoError(t, err)
		_, err = c.Write([]byte("room again"))
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Second)))
		_, err = c.Read(make([]byte, 1))
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		require.True(t, timeout.Timeout())
	})
}

func TestGossipAnswerIsWholeAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		go func() {
			for c := range b.GossipConns() {
				_, _ = io.ReadFull(c, make([]byte, 5))
				_, _ = c.Write(make([]byte, 100_000))
				_ = c.Close()
			}
		}()
		for range 20 {
			c, err := a.DialGossip(within(t, time.Second), b.Self().Addr, "b#1")
			require.NoError(t, err)
			_, err = c.Write([]byte("state"))
			require.NoError(t, err)
			got, err := io.ReadAll(c)
			require.NoError(t, err)
			require.Len(t, got, 100_000)
			require.NoError(t, c.Close())
		}
	})
}

func TestGossipOfANewerStartDoesNotReachTheOlder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a, b, _ := memPair(t)
		_, err := a.DialGossip(within(t, time.Second), b.Self().Addr, "b#1")
		require.NoError(t, err)
		_, err = a.DialGossip(within(t, 5*time.Second), b.Self().Addr, "b#2")
		require.ErrorIs(t, err, ErrStale)
	})
}

// The filter on a real socket must hand on batches in which gossip and QUIC are mixed.
func TestGossipAndStreamsShareARealSocket(t *testing.T) {
	a, b := pair(t)
	b.Handle(ClassBulk, echo)
	s, err := a.Open(within(t, 5*time.Second), "b", ClassBulk)
	require.NoError(t, err)
	var work sync.WaitGroup
	stop := make(chan struct{})
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = a.WritePacket(make([]byte, 300), b.Self().Addr, "b#1")
			}
		}
	})
	got := 0
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-b.Packets():
				got++
			}
		}
	})
	frame := appendFrame(nil, 1, make([]byte, 1<<19))
	for range 20 {
		require.NoError(t, s.WriteFrames(frame))
		_, payload, err := s.ReadFrame()
		require.NoError(t, err)
		require.Len(t, payload, 1<<19)
	}
	close(stop)
	work.Wait()
	s.Cancel()
	require.Positive(t, got)
	require.Zero(t, b.seen.forged.Load())
}

func TestBurstOfPacketsIsKept(t *testing.T) {
	a, b := pair(t)
	for n := range 500 {
		require.NoError(t, a.WritePacket(fmt.Append(nil, n), b.Self().Addr, "b#1"))
	}
	for n := range 500 {
		select {
		case p := <-b.Packets():
			require.Equal(t, fmt.Sprint(n), string(p.Data))
		case <-time.After(5 * time.Second):
			t.Fatalf("packet %d was lost", n)
		}
	}
}

func TestDualStackSocketReachesBothFamilies(t *testing.T) {
	book := &pages{}
	wide, err := net.ListenUDP("udp", &net.UDPAddr{})
	require.NoError(t, err)
	cfg := config(wide, "wide", 1)
	cfg.Advertise = addrPort(&net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: wide.LocalAddr().(*net.UDPAddr).Port})
	a := start(t, cfg, book)
	b := start(t, config(loopback(t), "b", 1), book)
	a.Handle(ClassCommand, echo)
	b.Handle(ClassCommand, echo)
	_, err = ask(within(t, 5*time.Second), a, "b", "x")
	require.NoError(t, err)
	require.NoError(t, a.WritePacket([]byte("x"), b.Self().Addr, "b#1"))
	require.Equal(t, a.Self().Addr, (<-b.Packets()).From)
	require.NoError(t, b.WritePacket([]byte("x"), a.Self().Addr, "wide#1"))
	require.Equal(t, b.Self().Addr, (<-a.Packets()).From)
}

func TestDoorLimitsHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d door
		who := func(n byte) *quic.ClientInfo {
			return &quic.ClientInfo{RemoteAddr: &net.UDPAddr{IP: net.IPv4(10, 0, 0, n), Port: 1}}
		}
		for second := range 3 {
			admitted := 0
			for range 1000 {
				if d.admit(who(1)) == nil {
					admitted++
				}
			}
			require.Equal(t, handshakesPerAddr, admitted, second)
			require.False(t, d.busy(nil))
			for n := range 1000 {
				if d.admit(who(byte(n%100+2))) == nil {
					admitted++
				}
			}
			require.Equal(t, handshakesPerSecond, admitted)
			require.True(t, d.busy(nil))
			require.LessOrEqual(t, len(d.addrs), handshakesPerSecond)
			time.Sleep(time.Second)
		}
	})
}
