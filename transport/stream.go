package transport

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/clatter-go/clatter/internal/wire"
)

// keptBuffer is how large a frame buffer a stream keeps for the next frame.
const keptBuffer = 256 << 10

// Stream is a bidirectional stream of frames to one peer. Who opened one must end it:
// with Cancel, or with Close and reading to io.EOF or an error.
type Stream struct {
	qs    *quic.Stream
	link  *link
	class Class
	max   int
	ours  bool // opened by us

	r   *bufio.Reader
	buf []byte // of the frame that was read last

	halves   atomic.Uint32 // sent, received: which directions are over
	canceled chan struct{} // closed by the cancel of a call
	once     sync.Once
}

const (
	sent     uint32 = 1
	received uint32 = 2
)

func newStream(l *link, qs *quic.Stream, c Class, ours bool) *Stream {
	r := classes[c]
	s := &Stream{qs: qs, link: l, class: c, max: r.maxFrame, ours: ours}
	if r.buffer > 0 {
		s.r = bufio.NewReaderSize(qs, r.buffer)
	}
	qs.SetPriority(r.urgency, true)
	return s
}

// WriteFrames sends whole frames, built with wire.AppendFrame, in one write. It waits
// while the peer takes no more, until the deadline. frames may be reused afterwards.
// A frame beyond the limit of the class is [ErrTooLarge], and nothing is sent.
func (s *Stream) WriteFrames(frames []byte) error {
	if err := wire.CheckFrames(frames, s.max); err != nil {
		return err
	}
	_, err := s.write(frames)
	return err
}

func (s *Stream) write(b []byte) (int, error) {
	n, err := s.qs.Write(b)
	return n, meaning(err)
}

// ReadFrame waits for the next frame, until the deadline. payload is valid until the
// next call. The error is io.EOF after the last frame of a peer that closed the
// stream. A frame beyond the limit or without sense resets the stream.
//
// A deadline that strikes inside a frame loses the place in the stream, which must
// then be canceled.
func (s *Stream) ReadFrame() (typ byte, payload []byte, err error) {
	buf := s.buf
	if cap(buf) > keptBuffer && len(buf) < cap(buf)/4 {
		buf = nil // one large frame shall not cost its memory for ever
	}
	typ, s.buf, err = wire.ReadFrame(s.r, buf[:0], s.max)
	if err == nil {
		return typ, s.buf, nil
	}
	switch {
	case errors.Is(err, ErrTooLarge):
		s.reset(streamTooLarge)
	case errors.Is(err, ErrMalformed):
		s.reset(streamMalformed)
	case !errors.Is(err, os.ErrDeadlineExceeded):
		s.over(received)
	}
	return 0, nil, meaning(err)
}

// Close ends our direction: the peer reads what was written and then io.EOF. It can
// still send. It must not be called while WriteFrames runs. The error is [ErrCanceled]
// if one end has reset the stream before.
func (s *Stream) Close() error {
	err := s.qs.Close()
	s.over(sent)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCanceled, err)
	}
	return nil
}

// Cancel ends both directions at once. What is on its way may be lost; the peer's
// next read or write is [ErrCanceled] and the ctx of its handler ends.
func (s *Stream) Cancel() { s.reset(streamCanceled) }

func (s *Stream) reset(code quic.StreamErrorCode) {
	s.qs.CancelWrite(code)
	s.qs.CancelRead(code)
	s.over(sent | received)
}

// SetDeadline sets when reads and writes give up with os.ErrDeadlineExceeded; zero
// for never.
func (s *Stream) SetDeadline(t time.Time) error {
	return errors.Join(s.qs.SetReadDeadline(t), s.qs.SetWriteDeadline(t))
}

// SetReadDeadline is SetDeadline for reads.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.qs.SetReadDeadline(t) }

// SetWriteDeadline is SetDeadline for writes.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.qs.SetWriteDeadline(t) }

// over notes that a direction has ended. When both have, a stream of ours no longer
// keeps a retired connection alive.
func (s *Stream) over(which uint32) {
	before := s.halves.Or(which)
	if s.ours && before != sent|received && before|which == sent|received {
		s.link.ended()
	}
}
