package membership

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var fullMeta = meta{
	note: Note{RaftID: 1 << 40, Cluster: 0x1122334455667788, Term: 300, Digest: 7, Phase: 3,
		Voter: true, Leader: true, NoDir: true, Eligible: true},
	leaving: true, zone: "eu-1a", labels: map[string]string{"gpu": "no", "disk": "fast", "": ""},
}

func TestMetaSurvivesTheWire(t *testing.T) {
	for _, m := range []meta{{}, fullMeta, {zone: "x"}, {note: Note{Leader: true}}, {leaving: true}} {
		got, err := decodeMeta(m.append(nil))
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
}

func TestMetaIgnoresFieldsThatAreAppendedLater(t *testing.T) {
	got, err := decodeMeta(append(fullMeta.append(nil), "of the future"...))
	require.NoError(t, err)
	require.Equal(t, fullMeta, got)
}

func TestMetaIsRefusedWhereItIsCut(t *testing.T) {
	whole := fullMeta.append(nil)
	for n := range whole {
		_, err := decodeMeta(whole[:n])
		require.ErrorIs(t, err, errMeta, "%d of %d bytes", n, len(whole))
	}
	_, err := decodeMeta([]byte{metaVersion + 1})
	require.ErrorIs(t, err, errVersion)
}

func TestLargestMetaFitsWhatMemberlistCarries(t *testing.T) {
	fits := meta{zone: strings.Repeat("z", 218)}
	require.NoError(t, fits.checkSize())
	fits.note = Note{RaftID: 1<<64 - 1, Term: 1<<64 - 1, Cluster: 1<<64 - 1, Digest: 1<<32 - 1}
	require.LessOrEqual(t, len(fits.append(nil)), maxMeta)
	require.ErrorContains(t, (meta{zone: strings.Repeat("z", 219)}).checkSize(), "1 too many")
}

func FuzzDecodeMeta(f *testing.F) {
	f.Add(meta{}.append(nil))
	f.Add(fullMeta.append(nil))
	f.Add([]byte{1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again, err := decodeMeta(m.append(nil))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func BenchmarkMeta(b *testing.B) {
	buf := fullMeta.append(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeMeta(fullMeta.append(buf[:0])); err != nil {
			b.Fatal(err)
		}
	}
}
