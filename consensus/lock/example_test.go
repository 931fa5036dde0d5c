package lock_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/consensus/lock"
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

	store := lock.NewMemoryFence() // a resource that refuses who was overtaken
	err := n.Mutex("invoice/42").Do(ctx, func(ctx context.Context, h *lock.Hold) error {
		return store.Run(ctx, "invoice/42", h.Token(), func(context.Context) error {
			fmt.Println("posted under token", h.Token())
			return nil
		})
	})
	fmt.Println(err)
	h, err := n.Mutex("invoice/42").TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the next holder has token", h.Token())
	fmt.Println(h.Unlock(ctx))
	// Output:
	// posted under token 1
	// <nil>
	// the next holder has token 2
	// <nil>
}
