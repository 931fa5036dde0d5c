package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

var (
	// ErrMalformed is what every reader of this package answers to bytes that
	// are not what they claim to be.
	ErrMalformed = errors.New("malformed bytes")
	// ErrTooLarge is the answer to something beyond its limit.
	ErrTooLarge = errors.New("too large")
)

const (
	// FrameOverhead is what a frame adds to its payload, in bytes.
	FrameOverhead = frameLength + 1

	frameLength = 4
	// growStep is how far a buffer grows ahead of the bytes that have arrived: a
	// length is only a claim until they do.
	growStep = 64 << 10
)

// AppendFrame appends one frame of the given type to b. The payload must be
// shorter than 4 GiB; the limit of a stream class is far below.
func AppendFrame(b []byte, typ byte, payload []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(payload)+1))
	b = append(b, typ)
	return append(b, payload...)
}

// BeginFrame appends the header of a frame whose payload is about to be appended
// in place, and EndFrame completes it; at is len(b) before BeginFrame.
func BeginFrame(b []byte, typ byte) []byte { return append(b, 0, 0, 0, 0, typ) }

// EndFrame writes the length of the frame that began at index at and ends at len(b).
func EndFrame(b []byte, at int) {
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-frameLength))
}

// ReadFrame reads one frame whose payload has at most max bytes. The payload
// aliases buf where it fits and a larger buffer otherwise, so the next call may be
// given payload[:0] as buf. The buffer grows only as bytes arrive, 64 KiB or a
// doubling ahead.
//
// The error is [io.EOF] if r ends before the frame, [io.ErrUnexpectedEOF] if it ends
// inside, Is [ErrTooLarge] or [ErrMalformed] for a length out of bounds, and the
// error of r otherwise.
func ReadFrame(r *bufio.Reader, buf []byte, max int) (typ byte, payload []byte, err error) {
	head, err := r.Peek(frameLength)
	if err != nil {
		if err == io.EOF && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return 0, buf[:0], err
	}
	claim := binary.BigEndian.Uint32(head)
	if claim == 0 {
		return 0, buf[:0], fmt.Errorf("frame without a type: %w", ErrMalformed)
	}
	if uint64(claim)-1 > uint64(max) {
		return 0, buf[:0], fmt.Errorf("frame of %d bytes, limit %d: %w", claim-1, max, ErrTooLarge)
	}
	_, _ = r.Discard(frameLength)
	if typ, err = r.ReadByte(); err != nil {
		return 0, buf[:0], inside(err)
	}
	payload, err = readGrowing(r, buf[:0], int(claim-1))
	return typ, payload, err
}

// readGrowing reads n bytes to the end of the empty buf.
func readGrowing(r io.Reader, buf []byte, n int) ([]byte, error) {
	for len(buf) < n {
		if cap(buf) == len(buf) {
			grown := make([]byte, len(buf), min(n, max(growStep, 2*len(buf))))
			copy(grown, buf)
			buf = grown
		}
		step := buf[len(buf):min(n, cap(buf))]
		got, err := io.ReadFull(r, step)
		buf = buf[:len(buf)+got]
		if err != nil {
			return buf[:0], inside(err)
		}
	}
	return buf, nil
}

// inside is the error of a frame that was cut short.
func inside(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// CheckFrames tells whether b is a sequence of whole frames, each with a payload of
// at most max bytes. It is what a sender asks before it writes, so that a mistake
// is its own error and not a reset stream at the peer.
func CheckFrames(b []byte, max int) error {
	for len(b) > 0 {
		if len(b) < FrameOverhead {
			return fmt.Errorf("%d bytes after the last frame: %w", len(b), ErrMalformed)
		}
		n := uint64(binary.BigEndian.Uint32(b))
		switch {
		case n == 0:
			return fmt.Errorf("frame without a type: %w", ErrMalformed)
		case n-1 > uint64(max):
			return fmt.Errorf("frame of %d bytes, limit %d: %w", n-1, max, ErrTooLarge)
		case n > uint64(len(b)-frameLength):
			return fmt.Errorf("frame of %d bytes cut after %d: %w", n-1, len(b)-FrameOverhead, ErrMalformed)
		}
		b = b[frameLength+n:]
	}
	return nil
}
