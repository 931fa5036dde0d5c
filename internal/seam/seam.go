// Package seam carries what a test replaces, the socket and the file system, in the
// context of node.Start, so that the configuration that users see stays plain.
package seam

import (
	"context"
	"net"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Env replaces parts of the outside world. Zero fields stay real.
type Env struct {
	Listen func(addr string) (net.PacketConn, error) // "host:port"
	FS     vfs.FS
}

type key struct{}

// With returns a context that carries e to node.Start.
func With(ctx context.Context, e Env) context.Context { return context.WithValue(ctx, key{}, e) }

// From returns the environment that ctx carries, or the zero one.
func From(ctx context.Context) Env {
	e, _ := ctx.Value(key{}).(Env)
	return e
}
