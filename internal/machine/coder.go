package machine

import (
	"encoding/binary"
	"fmt"
)

// coder walks the fields of a message once, writing them or reading them: encode
// and decode are the same lines of code and cannot drift apart.
//
// Integers are unsigned varints, strings and byte slices carry their length in
// front. Fields are only ever appended to a message: a reader that finds the end
// of an older message leaves the newer fields zero, and ignores what follows the
// last field it knows. A malformed message sets err and leaves zeros; it never
// panics and never allocates more than the message is long.
type coder struct {
	b       []byte // writing: what is written so far; reading: what is left
	reading bool
	err     error
}

func (c *coder) fail(what string) {
	if c.err == nil {
		c.err = fmt.Errorf("machine: malformed message: %s", what)
	}
	c.b = nil
}

func (c *coder) u64(v *uint64) {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	if len(c.b) == 0 {
		*v = 0
		return
	}
	x, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail("integer")
		return
	}
	*v, c.b = x, c.b[n:]
}

func (c *coder) i64(v *int64) {
	u := uint64(*v<<1) ^ uint64(*v>>63) // zigzag, as in protocol buffers: small negatives stay short
	c.u64(&u)
	*v = int64(u>>1) ^ -int64(u&1)
}

func (c *coder) u32(v *uint32) {
	u := uint64(*v)
	c.u64(&u)
	if u > 1<<32-1 {
		c.fail("integer above 32 bits")
		return
	}
	*v = uint32(u)
}

func (c *coder) u8(v *uint8) {
	u := uint64(*v)
	c.u64(&u)
	if u > 255 {
		c.fail("integer above 8 bits")
		return
	}
	*v = uint8(u)
}

func (c *coder) flag(v *bool) {
	var u uint64
	if *v {
		u = 1
	}
	c.u64(&u)
	*v = u != 0
}

// bytes reads a slice that aliases the message: whoever keeps it copies it.
func (c *coder) bytes(v *[]byte) {
	n := uint64(len(*v))
	c.u64(&n)
	if !c.reading {
		c.b = append(c.b, *v...)
		return
	}
	if n > uint64(len(c.b)) {
		c.fail("length beyond the message")
		return
	}
	*v, c.b = c.b[:n:n], c.b[n:]
	if n == 0 {
		*v = nil
	}
}

func (c *coder) str(v *string) {
	if !c.reading {
		c.b = binary.AppendUvarint(c.b, uint64(len(*v)))
		c.b = append(c.b, *v...)
		return
	}
	var raw []byte
	c.bytes(&raw)
	*v = string(raw)
}

// count codes the length of a list whose elements take at least one byte each.
func (c *coder) count(have int) int {
	n := uint64(have)
	c.u64(&n)
	if c.reading && n > uint64(len(c.b)) {
		c.fail("count beyond the message")
		return 0
	}
	return int(n)
}

// list codes a list of messages. Each element is coded with its length in front,
// so that elements, too, can gain fields.
func list[T any, P interface {
	*T
	fields(*coder)
}](c *coder, v *[]T) {
	n := c.count(len(*v))
	if c.reading {
		*v = nil
	}
	if n == 0 {
		return
	}
	var one coder
	if !c.reading {
		for i := range *v {
			one.b = one.b[:0]
			P(&(*v)[i]).fields(&one)
			c.bytes(&one.b)
		}
		return
	}
	all := make([]T, 0, min(n, 4096))
	for range n {
		one = coder{reading: true}
		c.bytes(&one.b)
		var zero T
		all = append(all, zero)
		P(&all[len(all)-1]).fields(&one)
		if c.err == nil {
			c.err = one.err
		}
		if c.err != nil {
			return
		}
	}
	*v = all
}

func u64s[T ~uint64](c *coder, v *[]T) {
	n := c.count(len(*v))
	if c.reading {
		*v = nil
		if n > 0 {
			*v = make([]T, n)
		}
	}
	for i := range n {
		u := uint64((*v)[i])
		c.u64(&u)
		(*v)[i] = T(u)
	}
}

// Message is anything of this package that travels or is stored as bytes.
type Message interface{ fields(*coder) }

// Append appends the encoding of m to b.
func Append(b []byte, m Message) []byte {
	c := coder{b: b}
	m.fields(&c)
	return c.b
}

// Encode returns the encoding of m.
func Encode(m Message) []byte { return Append(nil, m) }

// Decode reads m from b. Byte slices in m alias b.
func Decode(b []byte, m Message) error {
	c := coder{b: b, reading: true}
	m.fields(&c)
	return c.err
}
