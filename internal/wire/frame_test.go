package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestFramesComeBackAsWritten(t *testing.T) {
	var b []byte
	for n := range 300 {
		b = AppendFrame(b, byte(n), make([]byte, n*n))
	}
	require.NoError(t, CheckFrames(b, 1<<20))
	r := bufio.NewReaderSize(iotest.HalfReader(bytes.NewReader(b)), 16)
	var buf []byte
	for n := range 300 {
		typ, payload, err := ReadFrame(r, buf[:0], 1<<20)
		require.NoError(t, err)
		require.Equal(t, byte(n), typ)
		require.Len(t, payload, n*n)
		buf = payload
	}
	_, _, err := ReadFrame(r, nil, 1<<20)
	require.Equal(t, io.EOF, err)
}

func TestBeginAndEndMakeTheSameFrame(t *testing.T) {
	b := []byte("before")
	at := len(b)
	b = append(BeginFrame(b, 9), "payload"...)
	EndFrame(b, at)
	require.Equal(t, AppendFrame([]byte("before"), 9, []byte("payload")), b)
}

func TestReadFrameRefuses(t *testing.T) {
	whole := AppendFrame(nil, 1, make([]byte, 100))
	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"nothing":        {nil, io.EOF},
		"half a length":  {whole[:3], io.ErrUnexpectedEOF},
		"a length alone": {whole[:4], io.ErrUnexpectedEOF},
		"half a payload": {whole[:50], io.ErrUnexpectedEOF},
		"no type":        {[]byte{0, 0, 0, 0, 1}, ErrMalformed},
		"one too many":   {AppendFrame(nil, 1, make([]byte, 101)), ErrTooLarge},
		"four gigabytes": {[]byte{0xff, 0xff, 0xff, 0xff, 1}, ErrTooLarge},
	} {
		_, _, err := ReadFrame(bufio.NewReader(bytes.NewReader(c.in)), nil, 100)
		require.ErrorIs(t, err, c.want, name)
	}
	failure := errors.New("line is cut")
	_, _, err := ReadFrame(bufio.NewReader(iotest.ErrReader(failure)), nil, 100)
	require.ErrorIs(t, err, failure)
}

func TestAClaimedLengthCostsNothing(t *testing.T) {
	claim := binary.BigEndian.AppendUint32(nil, 1<<30)
	claim = append(claim, make([]byte, 1000)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := ReadFrame(bufio.NewReader(bytes.NewReader(claim)), nil, 1<<30)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(2*growStep))
}

func TestCheckFramesRefusesWhatReadFrameWould(t *testing.T) {
	good := AppendFrame(AppendFrame(nil, 1, []byte("a")), 2, make([]byte, 50))
	require.NoError(t, CheckFrames(good, 50))
	require.NoError(t, CheckFrames(nil, 50))
	require.ErrorIs(t, CheckFrames(good, 49), ErrTooLarge)
	require.ErrorIs(t, CheckFrames(good[:len(good)-1], 50), ErrMalformed)
	require.ErrorIs(t, CheckFrames(append(good, 1), 50), ErrMalformed)
	require.ErrorIs(t, CheckFrames([]byte{0, 0, 0, 0, 1}, 50), ErrMalformed)
}

func TestReadFrameReusesItsBuffer(t *testing.T) {
	b := AppendFrame(nil, 1, make([]byte, 200))
	src := bytes.NewReader(nil)
	r := bufio.NewReader(src)
	buf := make([]byte, 0, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		src.Reset(b)
		r.Reset(src)
		_, buf, _ = ReadFrame(r, buf[:0], 1<<10)
	}))
}

// FuzzFrame: whatever comes in, frames come out as CheckFrames predicts.
func FuzzFrame(f *testing.F) {
	f.Add(AppendFrame(AppendFrame(nil, 1, []byte("a")), 2, nil))
	f.Add([]byte{0, 0, 0, 0, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 1 << 10
		r := bufio.NewReaderSize(bytes.NewReader(b), 16)
		var buf, again []byte
		var err error
		for {
			var typ byte
			if typ, buf, err = ReadFrame(r, buf[:0], limit); err != nil {
				break
			}
			again = AppendFrame(again, typ, buf)
		}
		require.True(t, bytes.HasPrefix(b, again))
		require.Equal(t, err == io.EOF, CheckFrames(b, limit) == nil)
	})
}

func BenchmarkReadFrame(b *testing.B) {
	var frames []byte
	for range 64 {
		frames = AppendFrame(frames, 1, make([]byte, 128))
	}
	src := bytes.NewReader(frames)
	r := bufio.NewReaderSize(src, 32<<10)
	var buf []byte
	b.ReportAllocs()
	b.SetBytes(128)
	for b.Loop() {
		var err error
		if _, buf, err = ReadFrame(r, buf[:0], 1<<20); err == io.EOF {
			src.Reset(frames)
			r.Reset(src)
		}
	}
}
