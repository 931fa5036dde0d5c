package node_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"

	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
)

func Example() {
	ctx := context.Background()
	// A cluster of one. Set Listen, Join, Expect: 3 and Secret for a real one.
	n, err := node.Start(ctx, node.Config{Name: "alice", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer n.Leave(ctx)

	err = n.Mutex("invoice/42").Do(ctx, func(ctx context.Context, h *lock.Hold) error {
		fmt.Println(n.Name(), "has token", h.Token())
		return nil
	})
	fmt.Println(err)
	for m := range n.Members() {
		fmt.Println(m.Name, m.State)
	}
	// Output:
	// alice has token 1
	// <nil>
	// alice alive
}
