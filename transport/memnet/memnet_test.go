package memnet

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	a = "10.0.0.1:7000"
	b = "10.0.0.2:7000"
	c = "10.0.0.3:7000"
)

func listen(t *testing.T, n *Net, addr string) net.PacketConn {
	t.Helper()
	pc, err := n.Listen(addr)
	require.NoError(t, err)
	t.Cleanup(func() { pc.Close() })
	return pc
}

func send(t *testing.T, from net.PacketConn, to, text string) {
	t.Helper()
	_, err := from.WriteTo([]byte(text), net.UDPAddrFromAddrPort(addrOf(to)))
	require.NoError(t, err)
}

// arrived reads until nothing has come for a minute.
func arrived(t *testing.T, pc net.PacketConn) []string {
	t.Helper()
	var got []string
	buf := make([]byte, 2048)
	for {
		require.NoError(t, pc.SetReadDeadline(time.Now().Add(time.Minute)))
		n, _, err := pc.ReadFrom(buf)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			return got
		}
		got = append(got, string(buf[:n]))
	}
}

func TestPerfectLinkKeepsOrderAndNamesTheSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		from, to := listen(t, n, a), listen(t, n, b)
		for i := range 5 {
			send(t, from, b, fmt.Sprint(i))
		}
		buf := make([]byte, 10)
		size, addr, err := to.ReadFrom(buf)
		require.NoError(t, err)
		require.Equal(t, "0", string(buf[:size]))
		require.Equal(t, a, addr.String())
		require.IsType(t, &net.UDPAddr{}, addr)
		require.Equal(t, []string{"1", "2", "3", "4"}, arrived(t, to))
	})
}

func TestDelayIsKeptToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		n.Set(a, b, Rule{Delay: 30 * time.Millisecond})
		from, to := listen(t, n, a), listen(t, n, b)
		start := time.Now()
		send(t, from, b, "x")
		_, _, err := to.ReadFrom(make([]byte, 1))
		require.NoError(t, err)
		require.Equal(t, 30*time.Millisecond, time.Since(start))
	})
}

func TestOneSeedGivesOneOutcome(t *testing.T) {
	run := func(seed uint64) (got []string) {
		synctest.Test(t, func(t *testing.T) {
			n := New(seed)
			n.SetAll(Rule{Drop: 0.2, Dup: 0.2, Delay: time.Millisecond, Jitter: 5 * time.Millisecond})
			from, to := listen(t, n, a), listen(t, n, b)
			for i := range 200 {
				send(t, from, b, fmt.Sprint(i))
				time.Sleep(time.Millisecond)
			}
			got = arrived(t, to)
		})
		return got
	}
	first := run(7)
	require.Equal(t, first, run(7))
	require.NotEqual(t, first, run(8))
	require.InDelta(t, 200*0.8*1.2, len(first), 40)
}

func TestJitterReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(3)
		n.SetAll(Rule{Jitter: 10 * time.Millisecond})
		from, to := listen(t, n, a), listen(t, n, b)
		var sent []string
		for i := range 50 {
			sent = append(sent, fmt.Sprint(i))
			send(t, from, b, sent[i])
		}
		got := arrived(t, to)
		require.ElementsMatch(t, sent, got)
		require.NotEqual(t, sent, got)
	})
}

func TestCutsSeverWhatTheySayAndHealLiftsThem(t *testing.T) {
	links := [][2]string{{a, b}, {b, a}, {a, c}, {c, a}, {b, c}, {c, b}}
	for name, test := range map[string]struct {
		cut  func(*Net)
		open [][2]string
	}{
		"Partition": {func(n *Net) { n.Partition([]string{a, b}, []string{c}) }, links[:2]},
		"Outsider":  {func(n *Net) { n.Partition([]string{a}, []string{c}) }, [][2]string{{a, b}, {b, a}, {b, c}, {c, b}}},
		"Isolate":   {func(n *Net) { n.Isolate(a) }, links[4:]},
		"OneWay":    {func(n *Net) { n.OneWay(a, b) }, links[1:]},
		"Blocked":   {func(n *Net) { n.Set(a, b, Rule{Blocked: true}) }, links[1:]},
		"Heal": {func(n *Net) {
			n.Isolate(a)
			n.OneWay(b, c)
			n.Partition([]string{a}, []string{b}, []string{c})
			n.Heal()
		}, links},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := New(1)
				socks := map[string]net.PacketConn{a: listen(t, n, a), b: listen(t, n, b), c: listen(t, n, c)}
				test.cut(n)
				var open [][2]string
				for _, l := range links {
					send(t, socks[l[0]], l[1], "x")
					if len(arrived(t, socks[l[1]])) == 1 {
						open = append(open, l)
					}
				}
				require.Equal(t, test.open, open)
				require.EqualValues(t, len(links)-len(open), n.Stats().Lost)
			})
		})
	}
}

func TestDatagramsBeyondTheMTUVanish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		n.SetAll(Rule{MTU: 3})
		from, to := listen(t, n, a), listen(t, n, b)
		send(t, from, b, "four")
		send(t, from, b, "two")
		require.Equal(t, []string{"two"}, arrived(t, to))
	})
}

func TestFullQueueLosesTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		from, to := listen(t, n, a), listen(t, n, b)
		for i := range depth + 10 {
			send(t, from, b, fmt.Sprint(i))
		}
		got := arrived(t, to)
		require.Len(t, got, depth)
		require.Equal(t, fmt.Sprint(depth-1), got[depth-1])
		require.EqualValues(t, 10, n.Stats().Overflowed)
	})
}

func TestCloseEndsReadersAndFreesTheAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		pc := listen(t, n, a)
		_, err := n.Listen(a)
		require.ErrorIs(t, err, ErrInUse)
		var readers sync.WaitGroup
		for range 3 {
			readers.Go(func() {
				_, _, err := pc.ReadFrom(make([]byte, 1))
				require.ErrorIs(t, err, net.ErrClosed)
			})
		}
		synctest.Wait()
		require.NoError(t, pc.Close())
		readers.Wait()
		_, err = pc.WriteTo([]byte("x"), pc.LocalAddr())
		require.ErrorIs(t, err, net.ErrClosed)
		listen(t, n, a)
	})
}

func TestSeveralReadersShareOneBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(1)
		from, to := listen(t, n, a), listen(t, n, b)
		var readers sync.WaitGroup
		for range 4 {
			readers.Go(func() {
				_, _, err := to.ReadFrom(make([]byte, 1))
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		for range 4 {
			send(t, from, b, "x")
		}
		readers.Wait()
	})
}

func TestPortZeroTakesAFreePort(t *testing.T) {
	n := New(1)
	first, second := listen(t, n, "10.0.0.1:0"), listen(t, n, "10.0.0.1:0")
	require.NotEqual(t, first.LocalAddr().String(), second.LocalAddr().String())
	_, err := n.Listen("nowhere")
	require.Error(t, err)
}

// TestQUICTransfersOverALossyLink shows that quic-go runs on these sockets inside a
// bubble and that nothing of it is left after Close.
func TestQUICTransfersOverALossyLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := New(5)
		n.SetAll(Rule{Drop: 0.05, Delay: 2 * time.Millisecond, Jitter: time.Millisecond})
		server, client := listen(t, n, a), listen(t, n, b)
		st, ct := &quic.Transport{Conn: server}, &quic.Transport{Conn: client}
		ln, err := st.Listen(&tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, NextProtos: []string{"x"}}, nil)
		require.NoError(t, err)
		conn, err := ct.Dial(t.Context(), server.LocalAddr(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"x"}}, nil)
		require.NoError(t, err)
		peer, err := ln.Accept(t.Context())
		require.NoError(t, err)
		go func() {
			s, err := conn.OpenUniStream()
			require.NoError(t, err)
			_, err = s.Write(make([]byte, 1<<20))
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}()
		s, err := peer.AcceptUniStream(t.Context())
		require.NoError(t, err)
		size, err := io.Copy(io.Discard, s)
		require.NoError(t, err)
		require.EqualValues(t, 1<<20, size)
		require.NoError(t, conn.CloseWithError(0, ""))
		require.NoError(t, peer.CloseWithError(0, ""))
		require.NoError(t, ln.Close())
		require.NoError(t, st.Close())
		require.NoError(t, ct.Close())
		time.Sleep(time.Minute) // closed connections answer stragglers for a while
	})
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	pub, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(nil, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, pub, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func BenchmarkSendAndReceive(b *testing.B) {
	n := New(1)
	from, err := n.Listen(a)
	require.NoError(b, err)
	to, err := n.Listen(c)
	require.NoError(b, err)
	buf, addr := make([]byte, 1200), to.LocalAddr()
	b.ReportAllocs()
	for b.Loop() {
		from.WriteTo(buf, addr)
		to.ReadFrom(buf)
	}
}
