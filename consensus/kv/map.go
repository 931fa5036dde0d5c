package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/clatter-go/clatter/internal/wire"
)

// Map is a KV whose values are of type T, encoded as msgpack with field names, so
// that programs of different versions may read one another's: unknown fields are
// skipped, missing ones are zero.
type Map[T any] struct{ kv *KV }

// MapOf returns k as a map of values of type T.
func MapOf[T any](k *KV) Map[T] { return Map[T]{kv: k} }

// Get reads a value, linearizably. [ErrNotFound] if the key does not exist; bytes
// that are not exactly one T are an error.
func (m Map[T]) Get(ctx context.Context, key string) (v T, rev Rev, err error) {
	e, err := m.kv.Get(ctx, key)
	if err != nil {
		return v, 0, err
	}
	if err := wire.Unmarshal(e.Value, &v); err != nil {
		return v, 0, fmt.Errorf("get %q as %T: %w", key, v, err)
	}
	return v, e.Rev, nil
}

// Put sets a value.
func (m Map[T]) Put(ctx context.Context, key string, v T, opts ...PutOption) (Rev, error) {
	b, err := wire.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("put %q as %T: %w", key, v, err)
	}
	return m.kv.Put(ctx, key, b, opts...)
}

// Update reads a value, lets fn change it and writes it back if nobody else wrote
// meanwhile; if somebody has, fn runs again on the new value. A key that does not
// exist is given to fn as the zero T. An error of fn ends the update without a trace.
func (m Map[T]) Update(ctx context.Context, key string, fn func(*T) error) (Rev, error) {
	for {
		v, rev, err := m.Get(ctx, key)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		if err := fn(&v); err != nil {
			return 0, err
		}
		rev, err = m.Put(ctx, key, v, IfRev(rev))
		if !errors.Is(err, ErrConflict) {
			return rev, err
		}
	}
}
