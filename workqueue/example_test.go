package workqueue_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/clatter-go/clatter/node"
	"github.com/clatter-go/clatter/workqueue"
)

type thumbnail struct{ URL string }

// A durable queue on a cluster of one.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	n, err := node.Start(ctx, node.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer n.Leave(ctx)
	q, err := workqueue.Open[thumbnail](n, "thumbnails", workqueue.Config{MaxAttempts: 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	go q.Handle(ctx, func(ctx context.Context, t *workqueue.Task[thumbnail]) error {
		return t.SetResult("small " + t.Payload.URL)
	}, workqueue.Workers{N: 4})

	id, err := q.Submit(ctx, thumbnail{"cat.png"}, workqueue.Unique("cat.png", time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	same, err := q.Submit(ctx, thumbnail{"cat.png"}, workqueue.Unique("cat.png", time.Hour))
	fmt.Println(same == id, err)
	r, err := q.Wait(ctx, id)
	if err != nil {
		fmt.Println(err)
		return
	}
	var small string
	err = r.Into(&small)
	fmt.Println(r.State, r.Attempts, small, err)
	// Output:
	// true submit to "thumbnails": duplicate task
	// done 1 small cat.png <nil>
}
