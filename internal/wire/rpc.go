package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// MaxMethod is the longest name of a method, in bytes.
	MaxMethod = 64
	// MaxStatusText is the longest text of a refused call, in bytes.
	MaxStatusText = 1024
)

// Request is the head of a call:
//
//	uvarint length of Method | Method | uvarint Timeout
//
// The body follows.
type Request struct {
	Method  []byte // at most MaxMethod bytes; aliases the input when parsed
	Timeout uint64 // milliseconds the caller will still wait, 0 for no end: clocks need not agree
}

// Response is the head of an answer:
//
//	uvarint Code | u8 flags | if Code is not 0: uvarint length of Text | Text
//
// The body follows.
type Response struct {
	Code    uint64
	Refused bool   // the handler did not run
	Text    []byte // at most MaxStatusText bytes; aliases the input when parsed
}

const flagRefused = 1

// AppendRequest appends the head of a call to b.
func AppendRequest(b []byte, q Request) []byte {
	b = binary.AppendUvarint(b, uint64(len(q.Method)))
	b = append(b, q.Method...)
	return binary.AppendUvarint(b, q.Timeout)
}

// ParseRequest splits the bytes of a call in head and body. Both alias b. The error
// Is [ErrMalformed].
func ParseRequest(b []byte) (q Request, body []byte, err error) {
	if q.Method, b, err = text(b, MaxMethod, "method"); err != nil {
		return Request{}, nil, err
	}
	if q.Timeout, b, err = uvarint(b, "timeout"); err != nil {
		return Request{}, nil, err
	}
	return q, b, nil
}

// AppendResponse appends the head of an answer to b. Text beyond [MaxStatusText] is cut.
func AppendResponse(b []byte, a Response) []byte {
	b = binary.AppendUvarint(b, a.Code)
	flags := byte(0)
	if a.Refused {
		flags |= flagRefused
	}
	b = append(b, flags)
	if a.Code == 0 {
		return b
	}
	t := a.Text[:min(len(a.Text), MaxStatusText)]
	b = binary.AppendUvarint(b, uint64(len(t)))
	return append(b, t...)
}

// ParseResponse splits the bytes of an answer in head and body. Both alias b. Flags
// it does not know are ignored. The error Is [ErrMalformed].
func ParseResponse(b []byte) (a Response, body []byte, err error) {
	if a.Code, b, err = uvarint(b, "code"); err != nil {
		return Response{}, nil, err
	}
	if len(b) == 0 {
		return Response{}, nil, fmt.Errorf("flags missing: %w", ErrMalformed)
	}
	a.Refused = b[0]&flagRefused != 0
	b = b[1:]
	if a.Code == 0 {
		return a, b, nil
	}
	if a.Text, b, err = text(b, MaxStatusText, "text"); err != nil {
		return Response{}, nil, err
	}
	return a, b, nil
}

func uvarint(b []byte, what string) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, fmt.Errorf("%s is no number: %w", what, ErrMalformed)
	}
	return v, b[n:], nil
}

func text(b []byte, limit int, what string) (t, rest []byte, err error) {
	n, b, err := uvarint(b, what)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(limit) || n > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%s of %d bytes, limit %d, %d left: %w", what, n, limit, len(b), ErrMalformed)
	}
	return b[:n:n], b[n:], nil
}
