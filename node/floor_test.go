package node_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/wire"
	"github.com/clatter-go/clatter/transport"
)

// floor is the least that a replicated write can be: a command goes to a leader
// over QUIC, to two followers over QUIC, onto three disks with fdatasync, and is
// answered when two of the three have it. No raft, no codec, no machine. What
// clatter does is measured against it in the same run, because these machines
// wander.
type floor struct {
	nodes []*transport.Transport
	disks []*os.File

	mu     sync.Mutex // guards queue
	queue  []request
	bell   chan struct{}
	acks   []chan uint64 // of each disk: batches that it has, in order
	batch  chan []request
	orders []chan []byte // batches for each follower
}

type request struct {
	id    uint64
	data  []byte
	reply func(ids []byte)
}

type book map[string]netip.AddrPort

func (b book) Lookup(name string) (netip.AddrPort, uint64, bool) { a, ok := b[name]; return a, 1, ok }

func newFloor(b *testing.B) *floor {
	f := &floor{bell: make(chan struct{}, 1), batch: make(chan []request, 1024)}
	addrs := book{}
	dir := b.TempDir()
	for i := range 3 {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(b, err)
		name := fmt.Sprint("f", i)
		addrs[name] = netip.MustParseAddrPort(conn.LocalAddr().String())
		t, err := transport.New(transport.Config{
			Conn: conn, Advertise: addrs[name], Name: name, Boot: 1, Cluster: "floor", Secrets: [][]byte{[]byte("floor floor floor floor")},
		})
		require.NoError(b, err)
		disk, err := os.Create(filepath.Join(dir, name))
		require.NoError(b, err)
		_, err = disk.Write(make([]byte, 64<<20)) // no block is allocated while it is measured
		require.NoError(b, err)
		require.NoError(b, disk.Sync())
		_, err = disk.Seek(0, 0)
		require.NoError(b, err)
		f.nodes, f.disks = append(f.nodes, t), append(f.disks, disk)
		f.acks, f.orders = append(f.acks, make(chan uint64, 1024)), append(f.orders, make(chan []byte, 1024))
	}
	for i, t := range f.nodes {
		t.Use(addrs)
		t.Handle(transport.ClassRaftLog, func(_ context.Context, _ transport.Peer, s *transport.Stream) { f.follow(i, s) })
		t.Handle(transport.ClassCommand, func(_ context.Context, _ transport.Peer, s *transport.Stream) { f.serve(s) })
	}
	return f
}

func (f *floor) write(i int, data []byte) {
	f.disks[i].Write(data)
	if at, _ := f.disks[i].Seek(0, 1); at > 60<<20 {
		f.disks[i].Seek(0, 0)
	}
	datasync(f.disks[i])
}

// follow is a follower: each frame goes to disk, then its number goes back.
func (f *floor) follow(i int, s *transport.Stream) {
	for n := uint64(1); ; n++ {
		_, payload, err := s.ReadFrame()
		if err != nil {
			return
		}
		f.write(i, payload)
		if s.WriteFrames(wire.AppendFrame(nil, 1, binary.BigEndian.AppendUint64(nil, n))) != nil {
			return
		}
	}
}

// serve takes the commands of one node: frames of (8 bytes id, 256 bytes).
func (f *floor) serve(s *transport.Stream) {
	answers := make(chan []byte, 4096)
	defer close(answers)
	go func() {
		for ids := range answers {
			for len(answers) > 0 {
				ids = append(ids, <-answers...)
			}
			_ = s.WriteFrames(wire.AppendFrame(nil, 1, ids)) // an error ends the reader, and that this
		}
	}()
	for {
		_, payload, err := s.ReadFrame()
		if err != nil {
			return
		}
		for p := payload; len(p) >= 264; p = p[264:] {
			f.put(request{data: append([]byte(nil), p[8:264]...), id: binary.BigEndian.Uint64(p), reply: func(ids []byte) { answers <- ids }})
		}
	}
}

func (f *floor) put(r request) {
	f.mu.Lock()
	f.queue = append(f.queue, r)
	f.mu.Unlock()
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

// lead writes whatever queued while the last write ran as one batch.
func (f *floor) lead(ctx context.Context) {
	for i := 1; i < 3; i++ {
		s, err := f.nodes[0].Open(ctx, fmt.Sprint("f", i), transport.ClassRaftLog)
		if err != nil {
			return
		}
		go func() {
			for {
				select {
				case data := <-f.orders[i]:
					if s.WriteFrames(wire.AppendFrame(nil, 1, data)) != nil {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}()
		go func() {
			for {
				_, p, err := s.ReadFrame()
				if err != nil {
					return
				}
				f.acks[i] <- binary.BigEndian.Uint64(p)
			}
		}()
	}
	go f.commit(ctx)
	for n := uint64(1); ; {
		select {
		case <-ctx.Done():
			return
		case <-f.bell:
		}
		f.mu.Lock()
		batch := f.queue
		f.queue = nil
		f.mu.Unlock()
		if len(batch) == 0 {
			continue
		}
		var data []byte
		for _, r := range batch {
			data = append(data, r.data...)
		}
		f.batch <- batch
		f.orders[1] <- data
		f.orders[2] <- data
		f.write(0, data)
		f.acks[0] <- n
		n++
	}
}

// commit answers a batch when two of the three disks have it.
func (f *floor) commit(ctx context.Context) {
	var have [3]uint64
	for n := uint64(1); ; n++ {
		var batch []request
		select {
		case batch = <-f.batch:
		case <-ctx.Done():
			return
		}
		for {
			done := 0
			for _, h := range have {
				if h >= n {
					done++
				}
			}
			if done >= 2 {
				break
			}
			select {
			case have[0] = <-f.acks[0]:
			case have[1] = <-f.acks[1]:
			case have[2] = <-f.acks[2]:
			case <-ctx.Done():
				return
			}
		}
		for _, r := range batch {
			r.reply(binary.BigEndian.AppendUint64(nil, r.id))
		}
	}
}

// caller is one node's way to the leader, in process on the leader itself.
type caller struct {
	f    *floor
	home bool

	mu    sync.Mutex // guards what follows
	last  uint64
	waits map[uint64]chan struct{}
	out   []byte
	bell  chan struct{}
}

func (c *caller) do(data []byte) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.last++
	id := c.last
	c.waits[id] = ch
	if !c.home {
		c.out = append(binary.BigEndian.AppendUint64(c.out, id), data...)
	}
	c.mu.Unlock()
	if c.home {
		c.f.put(request{id: id, data: data, reply: c.answer})
	} else {
		select {
		case c.bell <- struct{}{}:
		default:
		}
	}
	<-ch
}

func (c *caller) answer(ids []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; len(ids) >= 8; ids = ids[8:] {
		id := binary.BigEndian.Uint64(ids)
		close(c.waits[id])
		delete(c.waits, id)
	}
}

func (c *caller) connect(ctx context.Context, t *transport.Transport) error {
	s, err := t.Open(ctx, "f0", transport.ClassCommand)
	if err != nil {
		return err
	}
	go func() {
		for {
			select {
			case <-c.bell:
			case <-ctx.Done():
				return
			}
			c.mu.Lock()
			out := c.out
			c.out = nil
			c.mu.Unlock()
			if len(out) > 0 && s.WriteFrames(wire.AppendFrame(nil, 1, out)) != nil {
				return
			}
		}
	}()
	go func() {
		for {
			_, p, err := s.ReadFrame()
			if err != nil {
				return
			}
			c.answer(p)
		}
	}()
	return nil
}

// BenchmarkFloor is commits per second of 256 B commands from callers spread evenly
// over three nodes. One op is one command.
func BenchmarkFloor(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			f := newFloor(b)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go f.lead(ctx)
			var ways []*caller
			for i, t := range f.nodes {
				c := &caller{f: f, home: i == 0, waits: map[uint64]chan struct{}{}, bell: make(chan struct{}, 1)}
				if i > 0 {
					require.NoError(b, c.connect(ctx, t))
				}
				ways = append(ways, c)
			}
			ways[1%len(ways)].do(make([]byte, 256)) // all is connected
			spread(b, callers, func(w int) error { ways[(w+1)%3].do(make([]byte, 256)); return nil })
			cancel()
			for _, t := range f.nodes {
				t.Close()
			}
		})
	}
}

// spread runs b.N ops from that many callers and reports ops per second.
func spread(b *testing.B, callers int, op func(w int) error) {
	b.Helper()
	b.ReportAllocs()
	var wg sync.WaitGroup
	work := make(chan struct{}, b.N)
	for range b.N {
		work <- struct{}{}
	}
	close(work)
	b.ResetTimer()
	for w := range callers {
		wg.Go(func() {
			for range work {
				if err := op(w); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "op/s")
}
