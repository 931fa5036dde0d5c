package nodetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/clatter-go/clatter/node/nodetest"
)

func Example() {
	t := &standIn{} // in a test: its t, and all of this in a synctest bubble
	defer t.end()
	ctx := context.Background()

	c := nodetest.New(t, 3)
	h, err := c.Node(0).Mutex("m").Lock(ctx)
	fmt.Println("token", h.Token(), err)
	c.Crash(0)
	c.Restart(0) // on its disk; its new process frees what the old one held
	h, err = c.Node(1).Mutex("m").Lock(ctx)
	fmt.Println("token", h.Token(), err)
	// Output:
	// token 1 <nil>
	// token 2 <nil>
}

// standIn is what examples have instead of a *testing.T.
type standIn struct {
	testing.TB
	cleanups []func()
}

func (s *standIn) Helper()                      {}
func (s *standIn) Cleanup(f func())             { s.cleanups = append(s.cleanups, f) }
func (s *standIn) Errorf(f string, args ...any) { fmt.Printf(f+"\n", args...) }
func (s *standIn) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func (s *standIn) end() {
	for _, f := range s.cleanups {
		f()
	}
}
