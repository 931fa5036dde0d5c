package wire

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Marshal encodes v, a struct or a pointer to one, as a msgpack map with the
// shortest form of every integer. Fields are named by their msgpack tag.
func Marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := msgpack.GetEncoder()
	defer msgpack.PutEncoder(e)
	e.Reset(&out)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return out.Bytes(), nil
}

// Unmarshal decodes b, which must be exactly one msgpack value within the limits of
// [Check], into v. Fields that v does not have are skipped, fields that b does not
// have stay as they are. Every error Is [ErrMalformed] or [ErrTooLarge].
func Unmarshal(b []byte, v any) error {
	if err := Check(b, MaxElements); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	d := msgpack.GetDecoder()
	defer msgpack.PutDecoder(d)
	r := bytes.NewReader(b)
	d.Reset(r)
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode %T: %w: %w", v, ErrMalformed, err)
	}
	if r.Len() > 0 {
		return fmt.Errorf("decode %T: %d bytes after the value: %w", v, r.Len(), ErrMalformed)
	}
	return nil
}
