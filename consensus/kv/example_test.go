package kv_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/consensus/kv"
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

	k := n.KV("config/")
	rev, err := k.Put(ctx, "color", []byte("blue"), kv.IfAbsent())
	if err != nil {
		log.Fatal(err)
	}
	if _, err := k.Put(ctx, "color", []byte("green"), kv.IfRev(rev)); err != nil {
		log.Fatal(err)
	}
	_, err = k.Put(ctx, "color", []byte("red"), kv.IfRev(rev))
	fmt.Println("a late writer:", errors.Is(err, kv.ErrConflict))

	for c, err := range k.Watch(ctx, "") {
		if err != nil || c.Kind == kv.Synced {
			break
		}
		fmt.Println(c.Kind, c.Entry.Key, string(c.Entry.Value))
	}

	type limits struct{ Burst int }
	_, err = kv.MapOf[limits](k).Update(ctx, "limits", func(l *limits) error { l.Burst++; return nil })
	fmt.Println(err)
	// Output:
	// a late writer: true
	// Init color green
	// <nil>
}
