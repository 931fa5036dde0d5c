package replica

import (
	"fmt"
	"testing"

	"github.com/clatter-go/clatter/internal/machine"
)

// BenchmarkCommit is one command through three replicas in one goroutine, without
// disk, codec or network: packed, replicated, acknowledged and applied three times.
func BenchmarkCommit(b *testing.B) {
	for _, batch := range []int{1, 64, 512} {
		b.Run(fmt.Sprint("batch=", batch), func(b *testing.B) {
			c := newCluster(b, 3)
			n := c.elect(1)
			n.enqueue(machine.OpOpenSession, machine.Cmd{}, &machine.OpenSession{TTL: 1 << 60, Node: "a", Boot: 1, Nonce: 1})
			c.settle()
			const s = 1 // the first session of a machine
			b.ReportAllocs()
			var seq uint64
			for b.Loop() {
				for range batch {
					seq++
					n.enqueue(machine.OpAdd, machine.Cmd{Session: s, Seq: seq, Floor: seq}, &machine.Add{Name: "n", Delta: 1})
				}
				c.settle()
				n.packed = nil
				if seq%65536 < uint64(batch) {
					c.compact()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(seq), "ns/command")
			if got := n.m.Query(&machine.Query{Kind: machine.QueryCounter, Name: "n"}).N; got != seq {
				b.Fatalf("%d of %d commands were carried out", got, seq)
			}
		})
	}
}

// compact lets the logs in memory go.
func (c *cluster) compact() {
	for _, id := range c.ids {
		if last, _ := c.nodes[id].disk.LastIndex(); last > 64 {
			_ = c.nodes[id].disk.Compact(last - 64)
		}
	}
}
