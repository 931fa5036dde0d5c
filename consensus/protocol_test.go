package consensus

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/machine"
)

func TestBodiesOfAnyLengthCarryTheirLength(t *testing.T) {
	for _, n := range []int{0, 1, 100, 118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 16370, 16380, 16384, 16390, 1 << 21} {
		want := machine.Result{Code: machine.Conflict, N: 7, Body: bytes.Repeat([]byte{9}, n)}
		b := appendAnswer([]byte("x"), 300, answered, &want)
		p := parser{b: b[1:]}
		require.Equal(t, uint64(300), p.number())
		require.Equal(t, byte(answered), p.fixed(1)[0])
		var got machine.Result
		require.NoError(t, machine.Decode(p.body(), &got))
		require.Equal(t, want.N, got.N)
		require.Len(t, got.Body, n)
		require.False(t, p.more())
		require.NoError(t, p.err())
	}
}

func FuzzFramesNeverPanic(f *testing.F) {
	var h [hashBytes]byte
	f.Add(appendWatch(nil, h, watchRequest{machine.TopicKeys, "a", false, 3}))
	f.Add(appendHello(nil, h, []machine.SessionID{1, 1 << 60}))
	f.Add(appendItem(nil, 1, []byte("cmd")))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, read := range []func(p *parser){
			func(p *parser) { p.hello(h); p.sessions() },
			func(p *parser) { p.hello(h); p.watch() },
			func(p *parser) { p.moved() },
			func(p *parser) {
				for p.more() {
					p.number()
					p.body()
				}
			},
		} {
			p := parser{b: b}
			read(&p)
			require.LessOrEqual(t, len(p.b), len(b))
		}
	})
}
