package transport

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/clatter-go/clatter/internal/wire"
)

const (
	rpcFrame       = 64 << 10
	maxCalls       = 4096 // in flight from this node
	maxCallsToPeer = 256
	maxIdleStreams = 16 // kept open for calls to one peer
	idleStream     = 30 * time.Second
	messageTime    = 30 * time.Second // for the rest of a message whose first frame has come
	maxTimeout     = time.Hour        // of a call, at the peer
)

// Frames of a message. All but the last carry frameMore.
const (
	frameMore byte = 1
	frameLast byte = 2
)

// pooled is a stream without a call.
type pooled struct {
	s     *Stream
	since time.Time
}

var messages = sync.Pool{New: func() any { return new([]byte) }}

// Call asks a peer and waits for its answer, at most 4 MiB each way. The time that
// ctx leaves travels with the call; when ctx ends, the handler's ctx ends too. While
// 256 calls to the peer or 4096 in all are in flight, it waits for its turn.
//
// A failure of the handler is a *[RemoteError]. Other errors are those of Open, Is
// the cause of ctx, or tell that the connection ended; [Unsent] tells whether the
// handler may have run.
func (t *Transport) Call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	resp, err := t.call(ctx, to, method, req)
	if err != nil {
		return nil, fmt.Errorf("call %s of %q: %w", method, to, err)
	}
	return resp, nil
}

func (t *Transport) call(ctx context.Context, to, method string, req []byte) ([]byte, error) {
	if len(method) > wire.MaxMethod || len(req) > MaxMessage {
		return nil, &unsentError{fmt.Errorf("request of %d bytes, limit %d: %w", len(req), MaxMessage, ErrTooLarge)}
	}
	select {
	case t.calls <- struct{}{}:
		defer func() { <-t.calls }()
	case <-ctx.Done():
		return nil, &unsentError{context.Cause(ctx)}
	case <-t.ctx.Done():
		return nil, &unsentError{ErrClosed}
	}
	var err error
	for range openTries {
		var l *link
		if l, err = t.connect(ctx, target{name: to}, ctl); err != nil {
			return nil, &unsentError{err}
		}
		var resp []byte
		var again bool
		if resp, again, err = l.call(ctx, method, req); !again {
			return resp, err
		}
	}
	return nil, err
}

// call runs on one connection. again means that this one could not take the call and
// nothing was sent.
func (l *link) call(ctx context.Context, method string, req []byte) (resp []byte, again bool, err error) {
	select {
	case l.calls <- struct{}{}:
		defer func() { <-l.calls }()
	case <-ctx.Done():
		return nil, false, &unsentError{context.Cause(ctx)}
	case <-l.conn.Context().Done():
		l.t.withdraw(l, meaning(context.Cause(l.conn.Context())))
		return nil, true, &unsentError{meaning(context.Cause(l.conn.Context()))}
	}
	s, err := l.callStream(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, ctx.Err() == nil, &unsentError{err}
	}
	stop := context.AfterFunc(ctx, func() {
		s.Cancel()
		close(s.canceled)
	})
	resp, err = s.exchange(ctx, method, req)
	if !stop() {
		<-s.canceled
		if err != nil && ctx.Err() != nil {
			err = sameSending(err, context.Cause(ctx))
		}
		return resp, false, err
	}
	if _, remote := err.(*RemoteError); err == nil || remote {
		l.park(s)
		return resp, false, err
	}
	s.Cancel()
	// A stream out of the pool may have been dead for a while: that is no news about
	// the peer.
	return nil, Unsent(err) && ctx.Err() == nil && !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrUnknownClass), err
}

// sameSending is cause, marked as unsent if err was.
func sameSending(err, cause error) error {
	if Unsent(err) {
		return &unsentError{cause}
	}
	return cause
}

// callStream takes the stream that was used last, or opens one.
func (l *link) callStream(ctx context.Context) (*Stream, error) {
	l.mu.Lock()
	if n := len(l.idle); n > 0 && !l.retired {
		s := l.idle[n-1].s
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		return s, nil
	}
	l.mu.Unlock()
	s, err := l.open(ctx, classRPC)
	if err == nil {
		s.canceled = make(chan struct{})
	}
	return s, err
}

// park keeps a stream for the next call, unless enough are kept.
func (l *link) park(s *Stream) {
	l.mu.Lock()
	keep := !l.retired && len(l.idle) < maxIdleStreams
	if keep {
		l.used = time.Now()
		l.idle = append(l.idle, pooled{s, l.used})
	}
	l.mu.Unlock()
	if !keep {
		s.Cancel()
	}
}

// expired takes the streams out of the pool that were not used for long: the first
// ones, since the last is used first. The caller holds l.mu.
func (l *link) expired(now time.Time) []pooled {
	n := 0
	for n < len(l.idle) && now.Sub(l.idle[n].since) > idleStream {
		n++
	}
	old := l.idle[:n:n]
	l.idle = l.idle[n:]
	return old
}

// exchange sends a request on s and reads the answer.
func (s *Stream) exchange(ctx context.Context, method string, req []byte) ([]byte, error) {
	var head [wire.MaxMethod + 16]byte
	q := wire.Request{Method: []byte(method)}
	if end, ok := ctx.Deadline(); ok {
		q.Timeout = uint64(max(time.Until(end).Milliseconds(), 0)) + 1
	}
	whole, err := s.sendMessage(wire.AppendRequest(head[:0], q), req)
	if err != nil {
		if !whole {
			// The handler waits for the last byte, and that never left.
			err = &unsentError{err}
		}
		return nil, err
	}
	msg, err := s.readMessage()
	if err != nil {
		if errors.Is(err, ErrOverloaded) || errors.Is(err, ErrUnknownClass) {
			err = &unsentError{err} // the peer says it has not looked at the stream
		}
		return nil, err
	}
	a, body, err := wire.ParseResponse(msg)
	if err != nil {
		return nil, err
	}
	if a.Code != 0 {
		return nil, &RemoteError{Code: Code(min(a.Code, 255)), Message: string(a.Text), refused: a.Refused}
	}
	return append([]byte(nil), body...), nil
}

// sendMessage sends head and body in one write. whole tells, on an error, whether the
// last byte may have been sent.
func (s *Stream) sendMessage(head, body []byte) (whole bool, err error) {
	buf := messages.Get().(*[]byte)
	*buf = appendMessage((*buf)[:0], head, body)
	n, err := s.write(*buf)
	whole = n == len(*buf)
	if cap(*buf) <= keptBuffer {
		messages.Put(buf)
	}
	return whole, err
}

// appendMessage appends the frames of head and body to b.
func appendMessage(b, head, body []byte) []byte {
	for {
		n := min(len(body), rpcFrame-len(head))
		typ := frameLast
		if n < len(body) {
			typ = frameMore
		}
		at := len(b)
		b = wire.BeginFrame(b, typ)
		b = append(append(b, head...), body[:n]...)
		wire.EndFrame(b, at)
		if head, body = nil, body[n:]; typ == frameLast {
			return b
		}
	}
}

// readMessage reads one message. It is valid until the next read.
func (s *Stream) readMessage() ([]byte, error) {
	typ, payload, err := s.ReadFrame()
	if err != nil || typ == frameLast {
		return payload, err
	}
	_ = s.SetReadDeadline(time.Now().Add(messageTime))
	msg := append([]byte(nil), payload...)
	for typ == frameMore {
		if typ, payload, err = s.ReadFrame(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.Cancel()
			}
			return nil, err
		}
		if len(msg)+len(payload) > MaxMessage+rpcFrame {
			s.reset(streamTooLarge)
			return nil, fmt.Errorf("message of more than %d bytes: %w", MaxMessage, ErrTooLarge)
		}
		msg = append(msg, payload...)
	}
	_ = s.SetReadDeadline(time.Time{})
	if typ != frameLast {
		s.reset(streamMalformed)
		return nil, fmt.Errorf("frame %d in a message: %w", typ, ErrMalformed)
	}
	return msg, nil
}

// serveCalls answers the calls of one stream, one after the other.
func (t *Transport) serveCalls(ctx context.Context, from Peer, s *Stream) {
	var head []byte
	for {
		msg, err := s.readMessage()
		if err != nil {
			return
		}
		q, req, err := wire.ParseRequest(msg)
		if err != nil {
			s.reset(streamMalformed)
			return
		}
		resp, failure := t.answer(ctx, from, q, req)
		a := wire.Response{}
		if failure != nil {
			resp = nil
			a = wire.Response{Code: uint64(failure.Code), Refused: failure.refused, Text: []byte(failure.Message)}
		}
		head = wire.AppendResponse(head[:0], a)
		if _, err := s.sendMessage(head, resp); err != nil {
			return
		}
	}
}

// answer runs the handler of a method.
func (t *Transport) answer(ctx context.Context, from Peer, q wire.Request, req []byte) ([]byte, *RemoteError) {
	t.roles.RLock()
	h := t.methods[string(q.Method)]
	t.roles.RUnlock()
	if h == nil {
		return nil, &RemoteError{Code: NotFound, Message: fmt.Sprintf("no method %q", q.Method), refused: true}
	}
	if q.Timeout > 0 {
		var cancel context.CancelFunc
		limit := time.Duration(min(q.Timeout, uint64(maxTimeout.Milliseconds()))) * time.Millisecond
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	resp, err := h(ctx, from, req)
	if err == nil && len(resp) > MaxMessage {
		err = fmt.Errorf("answer of %d bytes, limit %d: %w", len(resp), MaxMessage, ErrTooLarge)
	}
	if err == nil {
		return resp, nil
	}
	if remote, ok := errors.AsType[*RemoteError](err); ok && remote.Code != 0 {
		return nil, &RemoteError{Code: remote.Code, Message: remote.Message}
	}
	return nil, &RemoteError{Code: Internal, Message: err.Error()}
}
