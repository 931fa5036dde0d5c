package election_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/consensus/election"
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

	e := n.Election("compactor")
	err := e.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
		if err := l.Announce(ctx, []byte("10.0.0.7:9000")); err != nil {
			return err
		}
		leader, err := e.Leader(ctx)
		fmt.Printf("epoch %d: ask %s\n", leader.Epoch, leader.Value)
		return err
	})
	fmt.Println(err)
	_, err = e.Leader(ctx)
	fmt.Println(err)
	// Output:
	// epoch 1: ask 10.0.0.7:9000
	// <nil>
	// election "compactor": nobody leads
}
