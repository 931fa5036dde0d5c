package seal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	one = []byte("the first secret of the cluster")
	two = []byte("the second one, of the rotation")
)

func sealer(t testing.TB, cluster string, secrets ...[]byte) *Sealer {
	s, err := New(cluster, secrets)
	require.NoError(t, err)
	return s
}

func TestOnlyTheRecipientOpens(t *testing.T) {
	packet := []byte("alive b#1")
	for _, c := range []struct {
		name     string
		from, to *Sealer
		at       string
		want     error
	}{
		{"the recipient", sealer(t, "c", one), sealer(t, "c", one), "b#1", nil},
		{"during a rotation", sealer(t, "c", two, one), sealer(t, "c", one, two), "b#1", nil},
		{"another node", sealer(t, "c", one), sealer(t, "c", one), "a#1", ErrForged},
		{"its next start", sealer(t, "c", one), sealer(t, "c", one), "b#2", ErrForged},
		{"another secret", sealer(t, "c", one), sealer(t, "c", two), "b#1", ErrUnknownKey},
		{"another cluster", sealer(t, "c", one), sealer(t, "d", one), "b#1", ErrUnknownKey},
	} {
		t.Run(c.name, func(t *testing.T) {
			sealed := c.from.Seal([]byte("kept"), packet, "b#1")
			require.Equal(t, "kept", string(sealed[:4]))
			sealed = sealed[4:]
			require.Len(t, sealed, len(packet)+Overhead)
			require.Equal(t, byte(First), sealed[0])
			require.NotContains(t, string(sealed), string(packet))
			got, err := c.to.Open(nil, sealed, c.to.Bound(c.at))
			require.ErrorIs(t, err, c.want)
			if c.want == nil {
				require.Equal(t, packet, got)
			} else {
				require.Empty(t, got)
			}
		})
	}
}

func TestEveryBitIsSealed(t *testing.T) {
	s := sealer(t, "c", one)
	sealed := s.Seal(nil, []byte("ping"), "b#1")
	for bit := range 8 * len(sealed) {
		bad := bytes.Clone(sealed)
		bad[bit/8] ^= 1 << (bit % 8)
		_, err := s.Open(nil, bad, s.Bound("b#1"))
		require.Error(t, err, bit)
	}
	for n := range sealed {
		_, err := s.Open(nil, sealed[:n], s.Bound("b#1"))
		require.Error(t, err)
	}
}

func TestEqualPacketsDiffer(t *testing.T) {
	s := sealer(t, "c", one)
	require.NotEqual(t, s.Seal(nil, []byte("ping"), "b#1"), s.Seal(nil, []byte("ping"), "b#1"))
}

// FuzzOpenSeal: nothing that was not sealed opens, and nothing breaks the opener.
func FuzzOpenSeal(f *testing.F) {
	s := sealer(f, "c", one, two)
	f.Add(s.Seal(nil, []byte("ping"), "b#1"), []byte("x"))
	f.Add([]byte{First}, []byte{})
	f.Add(make([]byte, Overhead), []byte{})
	f.Fuzz(func(t *testing.T, foreign, packet []byte) {
		_, err := s.Open(nil, foreign, s.Bound("mallory#1"))
		require.Error(t, err)
		got, err := s.Open(nil, s.Seal(nil, packet, "b#1"), s.Bound("b#1"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(packet, got))
	})
}

func BenchmarkSeal(b *testing.B) {
	s := sealer(b, "c", one)
	packet := make([]byte, 90)
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		buf = s.Seal(buf[:0], packet, "node-1#1700000000000")
	}
}

func BenchmarkOpen(b *testing.B) {
	s := sealer(b, "c", one)
	bound := s.Bound("b#1")
	good := s.Seal(nil, make([]byte, 90), "b#1")
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	foreign := sealer(b, "d", one).Seal(nil, make([]byte, 90), "b#1")
	buf := make([]byte, 0, 256)
	for name, packet := range map[string][]byte{"good": good, "forged": forged, "unknown key": foreign} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf, _ = s.Open(buf[:0], packet, bound)
			}
		})
	}
}
