package transport

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkCall is a call of 128 bytes that is echoed, both ends in this process.
func BenchmarkCall(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			x, y := pair(b)
			y.Answer("echo", func(_ context.Context, _ Peer, req []byte) ([]byte, error) { return req, nil })
			req := make([]byte, 128)
			ctx := within(b, time.Minute)
			_, err := x.Call(ctx, "b", "echo", req)
			require.NoError(b, err)
			b.ReportAllocs()
			each(b, callers, func() {
				if _, err := x.Call(ctx, "b", "echo", req); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// each shares the iterations of b among n goroutines.
func each(b *testing.B, n int, f func()) {
	turns := make(chan struct{}, 4*n)
	done := make(chan struct{})
	for range n {
		go func() {
			for range turns {
				f()
			}
			done <- struct{}{}
		}()
	}
	for b.Loop() {
		turns <- struct{}{}
	}
	close(turns)
	for range n {
		<-done
	}
}

// BenchmarkFrames is small frames one way, so many to a write; an op is a frame.
func BenchmarkFrames(b *testing.B) {
	for _, batch := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			x, y := pair(b)
			got := make(chan int)
			y.Handle(ClassCommand, func(_ context.Context, _ Peer, s *Stream) {
				n := 0
				for {
					if _, _, err := s.ReadFrame(); err != nil {
						break
					}
					n++
				}
				got <- n
			})
			s, err := x.Open(within(b, 5*time.Second), "b", ClassCommand)
			require.NoError(b, err)
			var frames []byte
			for range batch {
				frames = appendFrame(frames, 1, make([]byte, 128))
			}
			b.ReportAllocs()
			b.SetBytes(128)
			n := 0
			for b.Loop() {
				if n++; n%batch == 0 {
					if err := s.WriteFrames(frames); err != nil {
						b.Fatal(err)
					}
				}
			}
			require.NoError(b, s.Close())
			require.Equal(b, n/batch*batch, <-got)
		})
	}
}

// BenchmarkRoundTrip is a batch of small frames to a peer and as many back, the shape
// of commands and their answers; an op is one frame there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, batch := range []int{1, 64} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			x, y := pair(b)
			y.Handle(ClassCommand, func(_ context.Context, _ Peer, s *Stream) {
				var out []byte
				for {
					out = out[:0]
					for range batch {
						typ, payload, err := s.ReadFrame()
						if err != nil {
							return
						}
						out = appendFrame(out, typ, payload)
					}
					if s.WriteFrames(out) != nil {
						return
					}
				}
			})
			s, err := x.Open(within(b, 5*time.Second), "b", ClassCommand)
			require.NoError(b, err)
			var frames []byte
			for range batch {
				frames = appendFrame(frames, 1, make([]byte, 128))
			}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if n++; n%batch != 0 {
					continue
				}
				if err := s.WriteFrames(frames); err != nil {
					b.Fatal(err)
				}
				for range batch {
					if _, _, err := s.ReadFrame(); err != nil {
						b.Fatal(err)
					}
				}
			}
			s.Cancel()
		})
	}
}
