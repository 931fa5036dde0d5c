package transport

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/quic-go/quic-go"

	"github.com/clatter-go/clatter/internal/wire"
)

var (
	// ErrClosed is the answer of a closed Transport.
	ErrClosed = errors.New("transport is closed")
	// ErrUnknownPeer means that neither a connection nor the address book knows the name.
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrSelf means that the peer is this very node, or another one of the same name.
	ErrSelf = errors.New("peer has the name of this node")
	// ErrIdentity means that the peer's certificate is of another cluster, secret or
	// node than was asked for.
	ErrIdentity = errors.New("identity refused")
	// ErrStale means that a newer start of the same node is known.
	ErrStale = errors.New("a newer start of the node is known")
	// ErrVersion means that the two nodes have no version of the protocol in common.
	ErrVersion = errors.New("no common protocol version")
	// ErrOverloaded means that the peer has as many streams of this class, or calls,
	// as it takes: come back later.
	ErrOverloaded = errors.New("peer is overloaded")
	// ErrCanceled is the answer of a stream that one end has reset.
	ErrCanceled = errors.New("stream was reset")
	// ErrUnknownClass means that the peer has no handler for the class of the stream:
	// it is older or still starting.
	ErrUnknownClass = errors.New("peer does not handle this class of stream")
	// ErrTooLarge is the answer to a frame, message or packet beyond its limit.
	ErrTooLarge = wire.ErrTooLarge
	// ErrMalformed is the answer to bytes of a peer that are not what they claim to be.
	ErrMalformed = wire.ErrMalformed
)

// PeerDownError tells why there is no connection to a peer.
type PeerDownError struct {
	Name  string
	Cause error
}

// Error names the peer and the cause.
func (e *PeerDownError) Error() string { return fmt.Sprintf("peer %q is down: %v", e.Name, e.Cause) }

// Unwrap is the cause.
func (e *PeerDownError) Unwrap() error { return e.Cause }

// Code classifies the failure of a call at the peer.
type Code uint8

const (
	// Internal is a failure of the handler that fits no other code.
	Internal Code = iota + 1
	// Unavailable means that the peer cannot do this now, another one may.
	Unavailable
	// Overloaded means that the peer has as much to do as it takes: come back later.
	Overloaded
	// NotFound means that the method, or what it was asked for, does not exist there.
	NotFound
	// Invalid means that the request makes no sense to the peer.
	Invalid
)

// String is the name of the code.
func (c Code) String() string {
	switch c {
	case Internal:
		return "internal"
	case Unavailable:
		return "unavailable"
	case Overloaded:
		return "overloaded"
	case NotFound:
		return "not found"
	case Invalid:
		return "invalid"
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// RemoteError is the failure of a call as the peer told it. A handler that returns
// one chooses the code; any other error of a handler arrives as Internal.
type RemoteError struct {
	Code    Code
	Message string // at most 1 KiB arrive

	refused bool // the handler did not run
}

// Error is the message and the code.
func (e *RemoteError) Error() string { return fmt.Sprintf("%s (%v at the peer)", e.Message, e.Code) }

// Is makes an Overloaded answer ErrOverloaded.
func (e *RemoteError) Is(target error) bool {
	return target == ErrOverloaded && e.Code == Overloaded
}

// Unsent tells whether the handler of the peer certainly has not seen the request
// that ended in err, so that sending it again, here or elsewhere, cannot do it twice.
// It is false whenever that is in doubt.
func Unsent(err error) bool {
	if _, ok := errors.AsType[*unsentError](err); ok {
		return true
	}
	remote, ok := errors.AsType[*RemoteError](err)
	return ok && remote.refused
}

// unsentError marks an error that came before the request was complete on the wire.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// Error codes of connections and streams, seen on the wire.
const (
	connShutdown   quic.ApplicationErrorCode = 0x00
	connProtocol   quic.ApplicationErrorCode = 0x01
	connDuplicate  quic.ApplicationErrorCode = 0x02
	connSuperseded quic.ApplicationErrorCode = 0x03
	connIdle       quic.ApplicationErrorCode = 0x04
	connLimit      quic.ApplicationErrorCode = 0x05
	connVersion    quic.ApplicationErrorCode = 0x06
	connIdentity   quic.ApplicationErrorCode = 0x07

	streamCanceled   quic.StreamErrorCode = 0x10
	streamOverloaded quic.StreamErrorCode = 0x12
	streamTooLarge   quic.StreamErrorCode = 0x13
	streamUnknown    quic.StreamErrorCode = 0x14
	streamMalformed  quic.StreamErrorCode = 0x16
)

var connMeaning = map[quic.ApplicationErrorCode]error{
	connShutdown:   errors.New("peer has shut down"),
	connProtocol:   ErrMalformed,
	connDuplicate:  errDuplicate,
	connSuperseded: ErrStale,
	connIdle:       errUnused,
	connLimit:      ErrOverloaded,
	connVersion:    ErrVersion,
	connIdentity:   ErrIdentity,
}

var streamMeaning = map[quic.StreamErrorCode]error{
	streamCanceled:   ErrCanceled,
	streamOverloaded: ErrOverloaded,
	streamTooLarge:   ErrTooLarge,
	streamUnknown:    ErrUnknownClass,
	streamMalformed:  ErrMalformed,
}

var (
	errDuplicate = errors.New("another connection to the same peer is used")
	errUnused    = errors.New("connection was not used")
	errRetired   = errors.New("connection takes no new streams")
)

// meaning translates an error of quic-go, so that callers can test for ours. The
// original stays in the chain.
func meaning(err error) error {
	if err == nil || err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	var known error
	if app, ok := errors.AsType[*quic.ApplicationError](err); ok {
		known = connMeaning[app.ErrorCode]
		if !app.Remote && app.ErrorCode == connShutdown {
			known = ErrClosed
		}
	} else if str, ok := errors.AsType[*quic.StreamError](err); ok {
		known = streamMeaning[str.ErrorCode]
	}
	if known == nil {
		return err
	}
	return fmt.Errorf("%w: %w", known, err)
}
