package membership

import (
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/transport"
)

// loopback starts n nodes at once on real sockets; each names all as seeds.
func loopback(b *testing.B, n int) []*List {
	b.Helper()
	var conns []net.PacketConn
	var join []string
	for range n {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(b, err)
		conns, join = append(conns, pc), append(join, pc.LocalAddr().String())
	}
	lists := make([]*List, n)
	var wg sync.WaitGroup
	for i, pc := range conns {
		wg.Go(func() {
			tr, err := transport.New(transport.Config{
				Conn: pc, Advertise: pc.LocalAddr().(*net.UDPAddr).AddrPort(), Name: string(rune('a' + i)), Boot: 1,
				Cluster: "bench", Secrets: [][]byte{secret}, Logger: slog.New(slog.DiscardHandler),
			})
			require.NoError(b, err)
			l, err := Start(b.Context(), Config{Transport: tr, Join: join, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(b, err)
			tr.Use(l)
			lists[i] = l
			b.Cleanup(func() { l.Close(); tr.Close() })
		})
	}
	wg.Wait()
	for _, l := range lists {
		until(l, func() bool { return len(l.Peers()) == n-1 })
	}
	return lists
}

func until(l *List, ok func() bool) {
	for changed := l.Changed(); !ok(); changed = l.Changed() {
		<-changed
	}
}

// BenchmarkForm takes the time from nothing until all see all, identities and
// handshakes included.
func BenchmarkForm(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		loopback(b, 3)
	}
}

// BenchmarkNote takes the time until two others know of a note.
func BenchmarkNote(b *testing.B) {
	lists := loopback(b, 3)
	b.ReportAllocs()
	for term := uint64(1); b.Loop(); term++ {
		lists[0].Note(Note{Term: term})
		for _, l := range lists[1:] {
			until(l, func() bool { return l.Peers()[0].Note.Term == term })
		}
	}
}
