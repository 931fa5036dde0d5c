package memnet_test

import (
	"fmt"
	"net"
	"time"

	"github.com/clatter-go/clatter/transport/memnet"
)

func Example() {
	n := memnet.New(1)
	alice, _ := n.Listen("10.0.0.1:7000")
	bob, _ := n.Listen("10.0.0.2:7000")
	defer alice.Close()
	defer bob.Close()

	n.OneWay("10.0.0.1:7000", "10.0.0.2:7000")
	alice.WriteTo([]byte("lost"), bob.LocalAddr())
	n.Heal()
	n.Set("10.0.0.1:7000", "10.0.0.2:7000", memnet.Rule{Delay: time.Millisecond})
	alice.WriteTo([]byte("hello"), bob.LocalAddr())

	buf := make([]byte, 16)
	size, from, _ := bob.ReadFrom(buf)
	fmt.Println(string(buf[:size]), "from", from.(*net.UDPAddr).IP)
	// Output: hello from 10.0.0.1
}
