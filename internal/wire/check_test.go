package wire

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

type letter struct {
	ID    uint64            `msgpack:"i"`
	Tags  []string          `msgpack:"t"`
	Attrs map[string]string `msgpack:"a"`
	Body  []byte            `msgpack:"b"`
	Deep  *letter           `msgpack:"d"`
}

func sized(first byte, n uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{first}, n)
}

// bombs are inputs that make msgpack v5.4.1 allocate gigabytes or overflow the stack
// (its issues 376 and 401), and their relatives.
var bombs = map[string][]byte{
	"array32 of 1e8":              sized(0xdd, 1e8),
	"array32 of 1e7":              sized(0xdd, 1e7),
	"map32 of 1e7":                sized(0xdf, 1e7),
	"map32 of 4e9":                sized(0xdf, 4e9),
	"bin32 of 4e9":                sized(0xc6, 4e9),
	"str32 of 4e9":                sized(0xdb, 4e9),
	"ext32 of 4e9":                sized(0xc9, 4e9),
	"array16 of 65535":            {0xdc, 0xff, 0xff},
	"map16 of 65535":              {0xde, 0xff, 0xff},
	"array in a known field":      append([]byte{0x81, 0xa1, 't'}, sized(0xdd, 1e8)...),
	"bin in a known field":        append([]byte{0x81, 0xa1, 'b'}, sized(0xc6, 4e9)...),
	"array in an unknown field":   append([]byte{0x81, 0xa1, 'x'}, sized(0xdd, 1e8)...),
	"nesting of 8 MiB":            bytes.Repeat([]byte{0x91}, 8<<20),
	"nesting in an unknown field": append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20)...),
	"maps nested":                 bytes.Repeat([]byte{0x81}, 1<<16),
	"too many elements":           append(sized(0xdd, 70000), bytes.Repeat([]byte{0xc0}, 70000)...),
	"too many elements, in parts": bytes.Repeat(append([]byte{0xdc, 0x7f, 0xff}, bytes.Repeat([]byte{0xc0}, 0x7ffe)...), 4),
}

func TestCheckRefusesBombsWithoutAllocating(t *testing.T) {
	for name, b := range bombs {
		t.Run(name, func(t *testing.T) {
			require.Error(t, Check(b, MaxElements))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.Error(t, Unmarshal(b, new(letter)))
			var open any
			require.Error(t, Unmarshal(b, &open))
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10))
		})
	}
}

func TestCheckRefusesWhatIsCutOrTooLong(t *testing.T) {
	whole, err := Marshal(&letter{ID: 1 << 40, Tags: []string{"a", strings.Repeat("b", 300)}, Attrs: map[string]string{"k": "v"}, Body: make([]byte, 70000)})
	require.NoError(t, err)
	require.NoError(t, Check(whole, MaxElements))
	for n := range min(len(whole), 500) {
		require.ErrorIs(t, Check(whole[:n], MaxElements), ErrMalformed)
	}
	require.ErrorIs(t, Check(append(whole, 0xc0), MaxElements), ErrMalformed)
	require.ErrorIs(t, Check([]byte{0xc1}, MaxElements), ErrMalformed)
}

func TestCheckKnowsEveryForm(t *testing.T) {
	for first := range 256 {
		b := append([]byte{byte(first)}, make([]byte, 200)...)
		var v msgpack.RawMessage
		r := bytes.NewReader(b)
		err := msgpack.NewDecoder(r).Decode(&v)
		if err != nil {
			require.Error(t, Check(b, MaxElements), "0x%02x", first)
			continue
		}
		used := len(b) - r.Len()
		require.NoError(t, Check(b[:used], MaxElements), "0x%02x", first)
		require.ErrorIs(t, Check(b, MaxElements), ErrMalformed, "0x%02x", first)
	}
}

func TestCheckAllowsTheWholeDepthAndBudget(t *testing.T) {
	require.NoError(t, Check(append(bytes.Repeat([]byte{0x91}, MaxDepth), 0xc0), MaxElements))
	require.ErrorIs(t, Check(append(bytes.Repeat([]byte{0x91}, MaxDepth+1), 0xc0), MaxElements), ErrTooLarge)
	require.NoError(t, Check([]byte{0x92, 1, 0x92, 2, 3}, 4))
	require.ErrorIs(t, Check([]byte{0x92, 1, 0x92, 2, 3}, 3), ErrTooLarge)
}

func TestUnmarshalSkipsUnknownFieldsAndKeepsMissingOnes(t *testing.T) {
	b, err := msgpack.Marshal(map[string]any{"i": 7, "new": []any{1, map[string]any{"x": "y"}}})
	require.NoError(t, err)
	got := letter{Body: []byte("kept")}
	require.NoError(t, Unmarshal(b, &got))
	require.Equal(t, letter{ID: 7, Body: []byte("kept")}, got)
}

func TestUnmarshalRefusesAnotherType(t *testing.T) {
	b, err := msgpack.Marshal(map[string]any{"i": "no number"})
	require.NoError(t, err)
	require.ErrorIs(t, Unmarshal(b, new(letter)), ErrMalformed)
}

// FuzzCheck: what passes can be decoded with memory in proportion to its size, and
// what was encoded passes.
func FuzzCheck(f *testing.F) {
	for _, b := range bombs {
		f.Add(b[:min(len(b), 1<<10)])
	}
	good, _ := Marshal(&letter{ID: 5, Tags: []string{"x"}, Deep: &letter{Body: []byte{1}}})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		if Check(b, MaxElements) != nil {
			return
		}
		var open any
		_ = Unmarshal(b, &open)
		var l letter
		if Unmarshal(b, &l) != nil {
			return
		}
		again, err := Marshal(&l)
		require.NoError(t, err)
		require.NoError(t, Unmarshal(again, new(letter)))
	})
}

func BenchmarkCheck(b *testing.B) {
	small, _ := Marshal(&letter{ID: 1 << 40, Tags: []string{"lock", "unlock"}, Attrs: map[string]string{"zone": "a"}, Body: make([]byte, 128)})
	large, _ := Marshal(&letter{Tags: make([]string, 60000)})
	for name, msg := range map[string][]byte{"small": small, "60000 elements": large} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(msg)))
			for b.Loop() {
				if err := Check(msg, MaxElements); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
