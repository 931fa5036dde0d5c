package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/clatter-go/clatter/internal/machine"
)

// Tx is one run of a transaction's function. It is not for use by several goroutines.
type Tx struct {
	ctx    context.Context
	kv     *KV
	reads  map[string]machine.Rev
	writes []write
}

// Txn runs fn and commits what it wrote if nothing that it read has changed
// meanwhile; if something has, fn runs again: it must not have other effects. An
// error of fn ends the transaction without a trace. Without writes only the reads
// happen, each by itself.
func (k *KV) Txn(ctx context.Context, fn func(*Tx) error) (Rev, error) {
	for {
		tx := &Tx{ctx: ctx, kv: k, reads: map[string]machine.Rev{}}
		if err := fn(tx); err != nil {
			return 0, err
		}
		if len(tx.writes) == 0 {
			return 0, nil
		}
		reads := make([]machine.Check, 0, len(tx.reads))
		for key, at := range tx.reads {
			reads = append(reads, machine.Check{Key: key, Rev: at})
		}
		_, rev, err := k.commit(ctx, "transaction", reads, tx.writes...)
		if c, ok := errors.AsType[*conflict](err); !ok || c.place >= len(reads) {
			return rev, err
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("transaction: %w", context.Cause(ctx))
		}
	}
}

// Get reads a key as this transaction sees it: with its own writes.
func (tx *Tx) Get(key string) (Entry, error) {
	full := tx.kv.prefix + key
	for i := len(tx.writes) - 1; i >= 0; i-- {
		if w := tx.writes[i].op; w.Key == full {
			if w.Kind == machine.KeyDelete {
				return Entry{}, fmt.Errorf("get %q: %w", key, ErrNotFound)
			}
			return Entry{Key: key, Value: w.Value}, nil
		}
	}
	e, err := tx.kv.Get(tx.ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return e, err
	}
	tx.reads[full] = machine.Rev(e.Rev)
	return e, err
}

// Put sets a key when the transaction commits.
func (tx *Tx) Put(key string, val []byte, opts ...PutOption) {
	tx.writes = append(tx.writes, tx.kv.write(machine.KeyPut, key, val, opts))
}

// Delete removes a key when the transaction commits.
func (tx *Tx) Delete(key string) {
	tx.writes = append(tx.writes, tx.kv.write(machine.KeyDelete, key, nil, nil))
}
