package session_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/consensus/kv"
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

	s, err := n.Session(ctx, 5*time.Second) // locks and keys may share one lease
	if err != nil {
		log.Fatal(err)
	}
	h, err := n.Mutex("shard/7").Lock(ctx, lock.WithSession(s))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := n.KV("owners/").Put(ctx, "7", []byte("me"), kv.Ephemeral(s)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Valid(), h.Valid())
	fmt.Println(s.Close(ctx))
	fmt.Println(s.Valid(), h.Valid())
	_, err = n.KV("owners/").Get(ctx, "7")
	fmt.Println(err)
	// Output:
	// true true
	// <nil>
	// false false
	// get "7": the key does not exist
}
