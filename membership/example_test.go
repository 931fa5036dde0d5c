package membership_test

import (
	"bytes"
	"context"
	"fmt"
	"net"

	"github.com/clatter-go/clatter/membership"
	"github.com/clatter-go/clatter/transport"
)

// Two nodes in one process find each other: the second one names the first as a seed.
func Example() {
	ctx := context.Background()
	start := func(name string, join ...string) (*transport.Transport, *membership.List) {
		conn, _ := net.ListenPacket("udp", "127.0.0.1:0")
		t, _ := transport.New(transport.Config{
			Conn: conn, Advertise: conn.LocalAddr().(*net.UDPAddr).AddrPort(),
			Name: name, Boot: 1, Cluster: "example", Secrets: [][]byte{bytes.Repeat([]byte("s"), 32)},
		})
		l, _ := membership.Start(ctx, membership.Config{Transport: t, Join: join})
		return t, l
	}
	ta, a := start("a")
	defer ta.Close()
	defer a.Close()
	tb, b := start("b", ta.Self().Addr.String())
	defer tb.Close()
	defer b.Leave(ctx)

	for e, err := range a.Events(ctx) {
		if err != nil {
			return
		}
		if e.Member.Name == "b" {
			fmt.Println(e.Kind, e.Member.Name)
			break
		}
	}
	// Output: joined b
}
