package machine

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// load feeds a machine entries of many commands, as the leader packs them.
type load struct {
	tb    testing.TB
	m     *Machine
	index uint64
	clock uint64
	cmds  [][]byte
}

func newLoad(tb testing.TB) *load { return &load{tb: tb, m: New()} }

func (l *load) add(c Cmd, body Message) {
	c.Body = Encode(body)
	l.cmds = append(l.cmds, Encode(&c))
}

func (l *load) entry() []byte {
	l.clock += 1_000_000
	e := AppendEntry(nil, Stamp{Clock: l.clock, Wall: int64(l.clock)}, l.cmds)
	l.cmds = nil
	return e
}

func (l *load) apply(entry []byte) Outcome {
	l.index++
	out, err := l.m.Apply(l.index, 1, entry)
	require.NoError(l.tb, err)
	return out
}

func (l *load) open(n int) (ids []SessionID) {
	for i := range n {
		l.add(Cmd{Op: OpOpenSession}, &OpenSession{TTL: 1 << 40, Node: fmt.Sprintf("node-%d", i)})
	}
	for _, a := range l.apply(l.entry()).Answers {
		ids = append(ids, SessionID(a.Result.N))
	}
	return ids
}

// BenchmarkApplyLock is one lock command: 64 callers, each on its own name, take
// turns to acquire and release; an entry has 64 commands.
func BenchmarkApplyLock(b *testing.B) {
	l := newLoad(b)
	ids := l.open(3)
	const callers, rounds = 64, 256
	var entries [][]byte
	seq := make([]uint64, 3)
	for r := range rounds {
		for i := range callers {
			who := i % 3
			seq[who]++
			l.add(Cmd{Session: ids[who], Seq: seq[who], Floor: max(seq[who], 64) - 63, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: fmt.Sprintf("invoice/%06d", i)})
		}
		entries = append(entries, l.entry())
		for i := range callers {
			who := i % 3
			acquired := uint64(r*2*(callers/3+b2u(who < callers%3)) + i/3 + 1)
			seq[who]++
			l.add(Cmd{Session: ids[who], Seq: seq[who], Floor: max(seq[who], 64) - 63, Op: OpRelease},
				&Release{Space: SpaceLock, Name: fmt.Sprintf("invoice/%06d", i), Target: acquired, Token: Token(r + 1)})
		}
		entries = append(entries, l.entry())
	}
	start := l.m.Encode()
	n, done := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		if n == len(entries) {
			b.StopTimer()
			l.m = New()
			require.NoError(b, l.m.Restore(start))
			l.index, n = 1, 0
			b.StartTimer()
		}
		out := l.apply(entries[n])
		for i := range out.Answers {
			if out.Answers[i].Result.Code != OK {
				b.Fatalf("entry %d: %+v", n, out.Answers[i])
			}
		}
		n++
		done += callers
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(done), "ns/command")
}

func b2u(b bool) int {
	if b {
		return 1
	}
	return 0
}

// BenchmarkApplyHandOver is one release that hands over to the next of 32 in line,
// and that one's Acquire at the end of it.
func BenchmarkApplyHandOver(b *testing.B) {
	l := newLoad(b)
	const line = 32
	ids := l.open(line)
	for _, id := range ids {
		l.add(Cmd{Session: id, Seq: 1, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: "x"})
	}
	l.apply(l.entry())
	held, token := uint64(1), Token(1)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		who := ids[i%line]
		l.add(Cmd{Session: who, Seq: held + 1, Floor: held + 1, Op: OpRelease}, &Release{Space: SpaceLock, Name: "x", Target: held, Token: token})
		l.add(Cmd{Session: who, Seq: held + 2, Floor: held + 2, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: "x"})
		out := l.apply(l.entry())
		if len(out.Events) != 1 || out.Answers[1].Result.Code != Queued {
			b.Fatalf("%+v", out)
		}
		token++
		if i%line == line-1 {
			held += 2
		}
	}
}

// BenchmarkApplyKeepAlive renews 10 000 sessions in 20 commands of 500.
func BenchmarkApplyKeepAlive(b *testing.B) {
	l := newLoad(b)
	const sessions = 10_000
	ids := l.open(sessions)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for i := 0; i < sessions; i += 500 {
			l.add(Cmd{Op: OpKeepAlive}, &KeepAlive{Sessions: ids[i : i+500]})
		}
		entry := l.entry()
		b.StartTimer()
		l.apply(entry)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sessions, "ns/session")
}

// BenchmarkSnapshot encodes 100 000 held locks.
func BenchmarkSnapshot(b *testing.B) {
	l := newLoad(b)
	hold(l, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		b.ReportMetric(float64(len(l.m.Encode())), "bytes")
	}
}

func hold(l *load, n uint64) {
	ids := l.open(3)
	for seq := uint64(1); seq <= n; seq++ {
		l.add(Cmd{Session: ids[seq%3], Seq: seq, Floor: seq, Op: OpAcquire}, &Acquire{Space: SpaceLock, Name: fmt.Sprintf("invoice/%08d", seq)})
		if seq%500 == 0 || seq == n {
			l.apply(l.entry())
		}
	}
}

func TestHeldLocksAreSmall(t *testing.T) {
	const n = 100_000
	measure := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := measure()
	l := newLoad(t)
	hold(l, n)
	used := measure() - before
	t.Logf("100 000 held locks with names of 16 bytes: %.1f MiB", float64(used)/(1<<20))
	require.Less(t, used, uint64(25<<20))
	runtime.KeepAlive(l)
}
