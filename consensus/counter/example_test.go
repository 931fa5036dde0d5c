package counter_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/node"
)

// alone starts a cluster of one on loopback; a real one sets Listen, Join, Expect and Secret.
func alone(ctx context.Context) *node.Node {
	n, err := node.Start(ctx, node.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return n
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n := alone(ctx)
	defer n.Close()

	hits := n.Counter("hits")
	for range 3 {
		if _, err := hits.Add(ctx, 2); err != nil {
			log.Fatal(err)
		}
	}
	swapped, err := hits.CompareAndSwap(ctx, 6, 100)
	fmt.Println(swapped, err)
	fmt.Println(hits.Get(ctx))
	// Output:
	// true <nil>
	// 100 <nil>
}
