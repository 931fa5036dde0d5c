package kv

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/clatter-go/clatter/internal/machine"
)

// Tx is one run of a transaction's function. It is not for use by several goroutines.
type Tx struct {
	ctx    context.Context
	kv     *KV
	reads  map[string]seen // by the whole key
	writes []write
}

// seen is what a key was at its first read: it stays that for the whole run.
type seen struct {
	entry Entry
	err   error // nil or ErrNotFound
}

// Txn runs fn and commits what it wrote if nothing that it read has changed
// meanwhile; if something has, fn runs again: it must not have other effects. An
// error of fn ends the transaction without a trace. Without writes only the reads
// happen, each by itself.
func (k *KV) Txn(ctx context.Context, fn func(*Tx) error) (Rev, error) {
	for {
		tx := &Tx{ctx: ctx, kv: k, reads: map[string]seen{}}
		if err := fn(tx); err != nil {
			return 0, err
		}
		if len(tx.writes) == 0 {
			return 0, nil
		}
		reads := make([]machine.Check, 0, len(tx.reads))
		for key, was := range tx.reads {
			reads = append(reads, machine.Check{Key: key, Rev: machine.Rev(was.entry.Rev)})
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

// Get reads a key as this transaction sees it: with its own writes, which have no
// revision yet, and twice the same otherwise. Errors as [KV.Get].
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
	if was, again := tx.reads[full]; again {
		was.entry.Value = bytes.Clone(was.entry.Value)
		return was.entry, was.err
	}
	e, err := tx.kv.Get(tx.ctx, key)
	if err == nil || errors.Is(err, ErrNotFound) {
		tx.reads[full] = seen{e, err}
		e.Value = bytes.Clone(e.Value)
	}
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
