// Quickstart forms a cluster on loopback inside one process and shows what it does:
// a lock with fencing tokens, an application leader, the death of a node that has
// both, and tasks that spread over all nodes.
//
//	go run ./examples/quickstart            # five nodes, ends by itself
//	go run ./examples/quickstart -nodes 7
//	go run ./examples/quickstart -serve     # stays up until Ctrl-C
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	nodes := flag.Int("nodes", 5, "number of nodes, 3 to 15")
	serve := flag.Bool("serve", false, "stay up until Ctrl-C")
	verbose := flag.Bool("v", false, "show the library's own log")
	flag.Parse()
	level := slog.LevelError + 4
	if *verbose {
		level = slog.LevelInfo
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *nodes, *serve); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart: failed:", err)
		os.Exit(1)
	}
	fmt.Println("quickstart: ok")
}

func run(ctx context.Context, size int, serve bool) error {
	if size < 3 || size > 15 {
		return fmt.Errorf("-nodes is %d: use 3 to 15, a majority must survive the loss of one", size)
	}
	timed, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := form(timed, size)
	if err != nil {
		return err
	}
	defer c.close()
	for _, act := range []func(context.Context) error{c.lockAndLead, c.killTheLeader, c.shareWork} {
		if err := act(timed); err != nil {
			return err
		}
	}
	if serve {
		say("serving on %v; Ctrl-C stops", c.addrs())
		<-ctx.Done()
	}
	return nil
}

var began = time.Now()

// say prints one line for one thing that happened.
func say(format string, args ...any) {
	fmt.Printf("%7.3fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
}
