// Package wire is the form of bytes between nodes: frames on streams, the header
// of a call, and the msgpack of cold messages.
//
// A frame is
//
//	u32 length of what follows (big endian) | u8 type | payload
//
// Hot messages are coded by hand on top of it; all others are msgpack maps, in
// which a reader skips the fields it does not know and leaves the missing ones
// zero, so that two versions can talk. Arrays in place of maps are never used for
// a struct: msgpack v5 refuses one of another length and loses its place in the
// input.
//
// # Invariants
//
// No input makes a reader panic, recurse or allocate more than a small multiple of
// the bytes that have arrived: [ReadFrame] grows its buffer only as bytes come, and
// [Check] stands before every decoder (five bytes make msgpack v5.4.1 allocate
// gigabytes, its issue 401).
//
// # Concurrency
//
// All functions are pure and may run at once on different buffers.
//
// # Failure
//
// Input that is cut short, too large or malformed is an error that Is
// [ErrMalformed] or [ErrTooLarge]; the caller ends the stream it came from.
package wire
