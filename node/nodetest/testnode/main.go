// Command testnode is one node for tests that need real processes: it does what the
// lines on its standard input say and answers each with one line.
//
//	put KEY VALUE     ok | unknown | fail TEXT
//	add NAME          ok VALUE | unknown | fail TEXT
//	get KEY           ok VALUE | fail TEXT
//	counter NAME      ok VALUE | fail TEXT
//	lock NAME         ok TOKEN | fail TEXT
//	believe           yes | no: whether the last lock is still held
//	unlock            ok | fail TEXT
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/clatter-go/clatter/consensus"
	"github.com/clatter-go/clatter/consensus/lock"
	"github.com/clatter-go/clatter/node"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// run takes name, directory and the addresses of all nodes, its own first.
func run(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: testnode NAME DIR ADDRESS [PEER...]")
	}
	n, err := node.Start(context.Background(), node.Config{
		Name: args[0], Dir: args[1], Listen: args[2], Join: args[2:], Expect: len(args) - 2,
		SessionTTL: 3 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	c := &console{node: n}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		fmt.Println(c.do(ctx, strings.Fields(in.Text())))
		cancel()
	}
	return n.Close()
}

type console struct {
	node *node.Node
	hold *lock.Hold
}

func (c *console) do(ctx context.Context, args []string) string {
	var value any = ""
	var err error
	switch args = append(args, "", "", ""); args[0] {
	case "put":
		_, err = c.node.KV("").Put(ctx, args[1], []byte(args[2]))
	case "add":
		value, err = c.node.Counter(args[1]).Add(ctx, 1)
	case "get":
		e, bad := c.node.KV("").Get(ctx, args[1])
		value, err = string(e.Value), bad
	case "counter":
		value, err = c.node.Counter(args[1]).Get(ctx)
	case "lock":
		if c.hold, err = c.node.Mutex(args[1]).Lock(ctx); err == nil {
			value = c.hold.Token()
		}
	case "believe":
		if c.hold.Valid() && c.hold.Context().Err() == nil {
			return "yes"
		}
		return "no"
	case "unlock":
		err = c.hold.Unlock(ctx)
	default:
		err = errors.New("no such command")
	}
	switch {
	case errors.Is(err, consensus.ErrUnknown):
		return "unknown"
	case err != nil:
		return "fail " + strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return strings.TrimSpace(fmt.Sprint("ok ", value))
}
