package transport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/clatter-go/clatter/transport/memnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	secretA = []byte("a secret of thirty-two bytes....")
	secretB = []byte("another secret, also long enough")
)

// pages is an address book for tests.
type pages struct {
	mu sync.Mutex
	m  map[string]Peer
}

func (p *pages) Lookup(name string) (netip.AddrPort, uint64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who, ok := p.m[name]
	return who.Addr, who.Boot, ok
}

func (p *pages) set(who Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m == nil {
		p.m = map[string]Peer{}
	}
	p.m[who.Name] = who
}

func loopback(t testing.TB) *net.UDPConn {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	return c
}

func config(c net.PacketConn, name string, boot uint64) Config {
	return Config{
		Conn:      c,
		Advertise: addrPort(c.LocalAddr()),
		Name:      name,
		Boot:      boot,
		Cluster:   "test",
		Secrets:   [][]byte{secretA},
		Logger:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// start runs a node that is listed in book and closed with the test.
func start(t testing.TB, cfg Config, book *pages) *Transport {
	n, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	n.Use(book)
	book.set(n.Self())
	return n
}

// pair is two nodes on loopback.
func pair(t testing.TB) (a, b *Transport) {
	book := &pages{}
	a = start(t, config(loopback(t), "a", 1), book)
	return a, start(t, config(loopback(t), "b", 1), book)
}

// mem runs a node on an in-memory network, in a bubble.
func mem(t testing.TB, net *memnet.Net, name string, boot uint64, at string, book *pages) *Transport {
	c, err := net.Listen(at)
	require.NoError(t, err)
	return start(t, config(c, name, boot), book)
}

// memPair is two nodes, a and b, on an in-memory network with some delay.
func memPair(t testing.TB) (net *memnet.Net, a, b *Transport, book *pages) {
	net, book = memnet.New(1), &pages{}
	net.SetAll(memnet.Rule{Delay: time.Millisecond})
	a = mem(t, net, "a", 1, "10.0.0.1:7000", book)
	return net, a, mem(t, net, "b", 1, "10.0.0.2:7000", book), book
}

// ask sends one frame on a new stream and returns the answer.
func ask(ctx context.Context, from *Transport, to string, text string) (string, error) {
	s, err := from.Open(ctx, to, ClassCommand)
	if err != nil {
		return "", err
	}
	defer s.Cancel()
	if err := s.WriteFrames(appendFrame(nil, 1, []byte(text))); err != nil {
		return "", err
	}
	_, payload, err := s.ReadFrame()
	return string(payload), err
}

// greeted is the next gossip stream that n was opened.
func greeted(t testing.TB, n *Transport) net.Conn {
	select {
	case c := <-n.GossipConns():
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no gossip stream came")
		return nil
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// echo answers every frame with itself.
func echo(_ context.Context, _ Peer, s *Stream) {
	var out []byte
	for {
		typ, payload, err := s.ReadFrame()
		if err != nil {
			return
		}
		out = appendFrame(out[:0], typ, payload)
		if s.WriteFrames(out) != nil {
			return
		}
	}
}
