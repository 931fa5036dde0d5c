package wire

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestComesBackAsWritten(t *testing.T) {
	for _, timeout := range []uint64{0, 1, 5000, math.MaxUint64} {
		want := Request{Method: []byte("node.describe"), Timeout: timeout}
		got, body, err := ParseRequest(append(AppendRequest(nil, want), "body"...))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, "body", string(body))
	}
}

func TestResponseComesBackAsWritten(t *testing.T) {
	for _, want := range []Response{
		{},
		{Refused: true},
		{Code: 3, Text: []byte("queue is full")},
		{Code: math.MaxUint64, Refused: true, Text: []byte{}},
	} {
		got, body, err := ParseResponse(append(AppendResponse(nil, want), "body"...))
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, "body", string(body))
	}
}

func TestLongTextIsCut(t *testing.T) {
	got, _, err := ParseResponse(AppendResponse(nil, Response{Code: 1, Text: []byte(strings.Repeat("x", 5000))}))
	require.NoError(t, err)
	require.Len(t, got.Text, MaxStatusText)
}

func TestBadHeadersAreMalformed(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":            {},
		"endless number":   bytes.Repeat([]byte{0xff}, 20),
		"method too long":  {200, 1},
		"method cut":       {10, 'a'},
		"timeout missing":  {1, 'a'},
		"method of length": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
	} {
		_, _, err := ParseRequest(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	for name, b := range map[string][]byte{
		"empty":         {},
		"flags missing": {0},
		"text missing":  {1, 0},
		"text cut":      {1, 0, 9, 'a'},
	} {
		_, _, err := ParseResponse(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
}

// FuzzRPCHeader: what parses, parses the same after it was written again.
func FuzzRPCHeader(f *testing.F) {
	f.Add(AppendRequest(nil, Request{Method: []byte("m"), Timeout: 300}))
	f.Add(AppendResponse(nil, Response{Code: 2, Refused: true, Text: []byte("no")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, body, err := ParseRequest(b); err == nil {
			again, rest, err := ParseRequest(append(AppendRequest(nil, q), body...))
			require.NoError(t, err)
			require.True(t, bytes.Equal(q.Method, again.Method) && q.Timeout == again.Timeout && bytes.Equal(body, rest))
		}
		if a, body, err := ParseResponse(b); err == nil {
			again, rest, err := ParseResponse(append(AppendResponse(nil, a), body...))
			require.NoError(t, err)
			require.True(t, bytes.Equal(a.Text, again.Text) && a.Code == again.Code && a.Refused == again.Refused && bytes.Equal(body, rest))
		}
	})
}

func BenchmarkRPCHeader(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 128)
	method := []byte("node.describe")
	for b.Loop() {
		buf = AppendRequest(buf[:0], Request{Method: method, Timeout: 5000})
		if _, _, err := ParseRequest(buf); err != nil {
			b.Fatal(err)
		}
	}
}
