package transport

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/wire"
)

var (
	appendFrame = wire.AppendFrame
	marshal     = wire.Marshal
)

func TestFramesTravelBothWays(t *testing.T) {
	a, b := pair(t)
	b.Handle(ClassCommand, echo)
	s, err := a.Open(within(t, 5*time.Second), "b", ClassCommand)
	require.NoError(t, err)
	batch := appendFrame(appendFrame(nil, 7, []byte("one")), 8, make([]byte, 1<<20))
	require.NoError(t, s.WriteFrames(batch))
	require.NoError(t, s.Close())
	typ, payload, err := s.ReadFrame()
	require.NoError(t, err)
	require.Equal(t, byte(7), typ)
	require.Equal(t, "one", string(payload))
	typ, payload, err = s.ReadFrame()
	require.NoError(t, err)
	require.Equal(t, byte(8), typ)
	require.Len(t, payload, 1<<20)
	_, _, err = s.ReadFrame()
	require.Equal(t, io.EOF, err)
}

func TestCallIsAnswered(t *testing.T) {
	a, b := pair(t)
	b.Answer("double", func(_ context.Context, from Peer, req []byte) ([]byte, error) {
		require.Equal(t, a.Self(), from)
		return append(req, req...), nil
	})
	for _, size := range []int{0, 1, 1000, 65000, 200_000, MaxMessage / 2} {
		resp, err := a.Call(within(t, 5*time.Second), "b", "double", make([]byte, size))
		require.NoError(t, err, size)
		require.Len(t, resp, 2*size)
	}
}

func TestGossipPacketsAndStreams(t *testing.T) {
	a, b := pair(t)
	require.NoError(t, a.WritePacket([]byte("ping"), b.Self().Addr, "b#1"))
	p := <-b.Packets()
	require.Equal(t, "ping", string(p.Data))
	require.Equal(t, a.Self().Addr, p.From)

	c, err := a.DialGossip(within(t, 5*time.Second), b.Self().Addr, "")
	require.NoError(t, err)
	_, err = c.Write([]byte("state"))
	require.NoError(t, err)
	d := <-b.GossipConns()
	got := make([]byte, 5)
	_, err = io.ReadFull(d, got)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, d.Close())
	require.Equal(t, "state", string(got))
}
