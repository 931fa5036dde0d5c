package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// MaxDepth is how deep arrays and maps of one value may nest.
	MaxDepth = 32
	// MaxElements is how many elements all arrays and maps of one message may have
	// together, a map counting keys and values, where the caller has no smaller bound.
	MaxElements = 65536
)

// Check tells whether b is exactly one msgpack value that is safe to decode: every
// declared length is covered by bytes that are there, arrays and maps nest at most
// [MaxDepth] deep and have at most maxElems elements in all. It neither allocates
// nor recurses, and must be asked before any decoder sees bytes from a network or a
// disk. The format is the msgpack specification's,
// https://github.com/msgpack/msgpack/blob/master/spec.md.
func Check(b []byte, maxElems int) error {
	w := walk{rest: b, budget: uint64(max(maxElems, 0))}
	w.open[0] = 1
	for {
		for w.open[w.depth] == 0 {
			if w.depth == 0 {
				return w.end()
			}
			w.depth--
		}
		w.open[w.depth]--
		if err := w.value(); err != nil {
			return err
		}
	}
}

// walk is a position in a msgpack value. It stands for the stack of a recursive
// reader, so that nesting costs nothing.
type walk struct {
	rest   []byte
	budget uint64               // elements that may still be declared
	depth  int                  // index of the innermost open array or map
	open   [MaxDepth + 1]uint64 // values still expected at each level
}

func (w *walk) end() error {
	if len(w.rest) > 0 {
		return fmt.Errorf("msgpack: %d bytes after the value: %w", len(w.rest), ErrMalformed)
	}
	return nil
}

// value reads the head of the next value and steps over its bytes or into its elements.
func (w *walk) value() error {
	if len(w.rest) == 0 {
		return fmt.Errorf("msgpack: value missing: %w", ErrMalformed)
	}
	c := w.rest[0]
	w.rest = w.rest[1:]
	switch {
	case c <= 0x7f || c >= 0xe0: // fixint
		return nil
	case c <= 0x8f:
		return w.enter(2 * uint64(c&0x0f)) // fixmap
	case c <= 0x9f:
		return w.enter(uint64(c & 0x0f)) // fixarray
	case c <= 0xbf:
		return w.skip(uint64(c & 0x1f)) // fixstr
	}
	h := heads[c-0xc0]
	n := uint64(h.fixed)
	if h.size > 0 {
		declared, err := w.length(int(h.size))
		if err != nil {
			return err
		}
		n += declared * uint64(h.times)
	}
	switch h.form {
	case flat:
		return w.skip(n)
	case nested:
		return w.enter(n)
	}
	return fmt.Errorf("msgpack: byte 0x%02x begins no value: %w", c, ErrMalformed)
}

func (w *walk) length(size int) (uint64, error) {
	if len(w.rest) < size {
		return 0, fmt.Errorf("msgpack: length missing: %w", ErrMalformed)
	}
	var n uint64
	switch size {
	case 1:
		n = uint64(w.rest[0])
	case 2:
		n = uint64(binary.BigEndian.Uint16(w.rest))
	default:
		n = uint64(binary.BigEndian.Uint32(w.rest))
	}
	w.rest = w.rest[size:]
	return n, nil
}

func (w *walk) skip(n uint64) error {
	if n > uint64(len(w.rest)) {
		return fmt.Errorf("msgpack: %d bytes declared, %d left: %w", n, len(w.rest), ErrMalformed)
	}
	w.rest = w.rest[n:]
	return nil
}

// enter opens an array or map of n values. Every value has at least one byte, so
// more values than bytes are a lie, told before anything is allocated for them.
func (w *walk) enter(n uint64) error {
	switch {
	case n == 0:
		return nil
	case n > uint64(len(w.rest)):
		return fmt.Errorf("msgpack: %d elements declared, %d bytes left: %w", n, len(w.rest), ErrMalformed)
	case n > w.budget:
		return fmt.Errorf("msgpack: %d elements over the limit: %w", n-w.budget, ErrTooLarge)
	case w.depth == MaxDepth:
		return fmt.Errorf("msgpack: nested deeper than %d: %w", MaxDepth, ErrTooLarge)
	}
	w.budget -= n
	w.depth++
	w.open[w.depth] = n
	return nil
}

type form uint8

const (
	never  form = iota // 0xc1 is not used by the format
	flat               // bytes
	nested             // elements
)

// head says what follows a first byte: a length of size bytes counted times times,
// on top of a fixed number of bytes.
type head struct {
	form  form
	fixed uint8
	size  uint8
	times uint8
}

// heads describes the first bytes 0xc0 to 0xdf in order.
var heads = [32]head{
	{form: flat},               // nil
	{},                         // never used
	{form: flat}, {form: flat}, // false, true
	{flat, 0, 1, 1}, {flat, 0, 2, 1}, {flat, 0, 4, 1}, // bin
	{flat, 1, 1, 1}, {flat, 1, 2, 1}, {flat, 1, 4, 1}, // ext
	{form: flat, fixed: 4}, {form: flat, fixed: 8}, // float
	{form: flat, fixed: 1}, {form: flat, fixed: 2}, {form: flat, fixed: 4}, {form: flat, fixed: 8}, // uint
	{form: flat, fixed: 1}, {form: flat, fixed: 2}, {form: flat, fixed: 4}, {form: flat, fixed: 8}, // int
	{form: flat, fixed: 2}, {form: flat, fixed: 3}, {form: flat, fixed: 5}, {form: flat, fixed: 9}, {form: flat, fixed: 17}, // fixext
	{flat, 0, 1, 1}, {flat, 0, 2, 1}, {flat, 0, 4, 1}, // str
	{nested, 0, 2, 1}, {nested, 0, 4, 1}, // array
	{nested, 0, 2, 2}, {nested, 0, 4, 2}, // map
}
