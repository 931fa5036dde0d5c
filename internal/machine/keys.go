package machine

import (
	"fmt"
	"strings"

	"github.com/google/btree"
)

// keys is the ordered store. Every change of a key has a revision of its own and an
// event; those of one transaction are consecutive, and the last is marked Last.
type keys struct {
	byName   *btree.BTreeG[*record]
	owned    *btree.BTreeG[*record] // ephemeral ones, by (session, key)
	mortal   heap[*record]          // those with a lifetime
	appended map[string]uint64      // the last number given in a directory; it survives its keys
}

// record is a key and what ends it.
type record struct {
	KeyEntry
	due   uint64 // cluster time at which it goes; 0 stays
	place int    // in mortal
}

func (r *record) before(o *record) bool { return r.due < o.due || r.due == o.due && r.Key < o.Key }

func (r *record) placed(i int) { r.place = i }

const (
	maxKey    = 1 << 10
	maxBytes  = 1 << 20 // of one value, and of all values of a transaction
	maxKeyOps = 128     // likewise conditions of each kind
	keyDigits = 20      // of a number made by KeyAppend: the longest uint64
	keyDegree = 32
)

func newKeys() keys {
	return keys{
		byName: btree.NewG(keyDegree, func(a, b *record) bool { return a.Key < b.Key }),
		owned: btree.NewG(keyDegree, func(a, b *record) bool {
			return a.Session < b.Session || a.Session == b.Session && a.Key < b.Key
		}),
		appended: map[string]uint64{},
	}
}

func (t *keys) get(key string) *record {
	r, _ := t.byName.Get(&record{KeyEntry: KeyEntry{Key: key}})
	return r
}

// txn carries a transaction out. Whatever can fail is looked at before anything is changed.
func (t *keys) txn(a *apply, _ *session, c *Txn) Result {
	if why := c.wrong(); why != "" {
		return invalid(why)
	}
	for i := range c.Guards {
		if !a.m.locks.holds(&c.Guards[i]) {
			return Result{Code: StaleToken}
		}
	}
	for i := range c.Ops {
		if s := c.Ops[i].Session; s != 0 && a.m.sessions.open(s) == nil {
			return Result{Code: NoSession, N: uint64(s)}
		}
	}
	for i := range c.Checks {
		if now := t.revision(c.Checks[i].Key); now != c.Checks[i].Rev {
			return Result{Code: Conflict, Rev: now, N: uint64(i)}
		}
	}
	answer := TxnAnswer{Done: make([]KeyDone, len(c.Ops))}
	made := changes{next: a.m.rev + 1}
	for i := range c.Ops {
		answer.Done[i] = t.operate(a, &c.Ops[i], &made)
	}
	return Result{Rev: made.tell(a), Body: Encode(&answer)}
}

// wrong says what is wrong with a transaction, whatever the state is.
func (c *Txn) wrong() string {
	if len(c.Ops) > maxKeyOps || len(c.Checks) > maxKeyOps || len(c.Guards) > maxKeyOps {
		return fmt.Sprintf("a transaction has at most %d operations, checks and guards each", maxKeyOps)
	}
	size := 0
	for i := range c.Ops {
		op := &c.Ops[i]
		longest := maxKey
		if op.Kind == KeyAppend {
			longest -= keyDigits
		}
		size += len(op.Value)
		switch {
		case op.Kind < KeyPut || op.Kind > KeyAppend:
			return fmt.Sprintf("key operation %d is not known", op.Kind)
		case op.Key == "" || len(op.Key) > longest:
			return fmt.Sprintf("a key has 1 to %d bytes, not %d", longest, len(op.Key))
		case size > maxBytes:
			return fmt.Sprintf("the values of a transaction have at most %d bytes", maxBytes)
		}
	}
	return ""
}

// revision returns 0 for a key that does not exist.
func (t *keys) revision(key string) Rev {
	if r := t.get(key); r != nil {
		return r.Rev
	}
	return 0
}

// changes collects what a transaction changes, so that the last event can be marked.
type changes struct {
	next Rev // of the change after those in all
	all  []keyChange
}

type keyChange struct {
	kind EventKind
	Change
}

func (c *changes) add(kind EventKind, one Change) {
	c.all = append(c.all, keyChange{kind, one})
	c.next++
}

// tell records the events and returns the revision of the last change; 0 if there was none.
func (c *changes) tell(a *apply) (last Rev) {
	for i := range c.all {
		one := &c.all[i]
		size := 2*len(one.Entry.Key) + len(one.Entry.Value) + len(one.Prev.Value) + 64
		body := Append(make([]byte, 0, size), &one.Change)
		last = a.change(Event{Kind: one.kind, Name: one.Entry.Key, Body: body, Last: i == len(c.all)-1})
	}
	return last
}

func (t *keys) operate(a *apply, op *KeyOp, made *changes) KeyDone {
	key := op.Key
	if op.Kind == KeyAppend {
		key = t.number(op.Key)
	}
	done := KeyDone{Key: key}
	old := t.get(key)
	if old != nil && op.WantOld {
		done.HadOld, done.Old = true, old.KeyEntry
	}
	switch {
	case op.Kind != KeyDelete:
		done.Rev = made.next
		t.put(a, key, op, old, made)
	case old != nil:
		done.Rev = made.next
		t.remove(old, false, made)
	}
	return done
}

// number returns the next free key of a directory. A number that somebody put there
// by hand is passed over, once, because an append never replaces.
func (t *keys) number(dir string) string {
	for {
		t.appended[dir]++
		if key := fmt.Sprintf("%s%0*d", dir, keyDigits, t.appended[dir]); t.get(key) == nil {
			return key
		}
	}
}

func (t *keys) put(a *apply, key string, op *KeyOp, old *record, made *changes) {
	r := &record{KeyEntry: KeyEntry{Key: key, Value: cloned(op.Value), Rev: made.next, Created: made.next, Session: op.Session}}
	if op.TTL != 0 {
		r.due = later(a.clock, op.TTL)
	}
	change := Change{}
	if old != nil {
		r.Created = old.Created
		change.HadPrev, change.Prev = true, old.KeyEntry
		t.unlink(old)
	}
	change.Entry = r.KeyEntry
	t.link(r)
	made.add(EventPut, change)
}

func (t *keys) remove(r *record, expired bool, made *changes) {
	t.unlink(r)
	made.add(EventDelete, Change{Entry: KeyEntry{Key: r.Key, Rev: made.next}, HadPrev: true, Prev: r.KeyEntry, Expired: expired})
}

func (t *keys) link(r *record) {
	t.byName.ReplaceOrInsert(r)
	if r.Session != 0 {
		t.owned.ReplaceOrInsert(r)
	}
	if r.due != 0 {
		t.mortal.push(r)
	}
}

func (t *keys) unlink(r *record) {
	t.byName.Delete(r)
	if r.Session != 0 {
		t.owned.Delete(r)
	}
	if r.due != 0 {
		t.mortal.remove(r.place)
	}
}

// expire deletes a key whose session or lifetime has ended: a change of its own.
func (t *keys) expire(a *apply, r *record) {
	made := changes{next: a.m.rev + 1}
	t.remove(r, true, &made)
	made.tell(a)
}

func (t *keys) due(a *apply) {
	for len(t.mortal) > 0 && t.mortal[0].due <= a.clock {
		t.expire(a, t.mortal[0])
	}
}

func (t *keys) next() (uint64, bool) {
	if len(t.mortal) == 0 {
		return 0, false
	}
	return t.mortal[0].due, true
}

// ended deletes the keys of a session, in the order of their names.
func (t *keys) ended(a *apply, s SessionID, _ bool) {
	for _, r := range t.of(s) {
		t.expire(a, r)
	}
}

func (t *keys) of(s SessionID) (all []*record) {
	t.owned.AscendGreaterOrEqual(&record{KeyEntry: KeyEntry{Session: s}}, func(r *record) bool {
		if r.Session == s {
			all = append(all, r)
		}
		return r.Session == s
	})
	return all
}

// query answers QueryKey and QueryScan; now is the revision of the whole state.
func (t *keys) query(q *Query, now Rev) Result {
	if q.Kind == QueryScan {
		page := t.scan(q)
		return Result{Rev: now, Body: Encode(&page)}
	}
	r := t.get(q.Name)
	if r == nil {
		return Result{Code: NotFound, Rev: now}
	}
	return Result{Rev: now, Body: Encode(&r.KeyEntry)}
}

// scan returns one page: at most q.Limit entries (0 sets no limit) and, after the
// first, not more than 1 MiB. It costs what it returns, wherever it starts.
func (t *keys) scan(q *Query) (page KeyList) {
	const head = 32 // of an entry beside key and value, at most
	size := 0
	t.byName.AscendGreaterOrEqual(&record{KeyEntry: KeyEntry{Key: max(q.Name, q.After)}}, func(r *record) bool {
		switch {
		case r.Key == q.After && q.After != "":
			return true
		case !strings.HasPrefix(r.Key, q.Name):
			return false
		}
		size += len(r.Key) + len(r.Value) + head
		if n := len(page.Entries); q.Limit > 0 && uint64(n) >= q.Limit || n > 0 && size > maxBytes {
			page.More = true
			return false
		}
		page.Entries = append(page.Entries, r.KeyEntry)
		return true
	})
	return page
}

func (t *keys) fields(k *coder) {
	n := k.count(t.byName.Len())
	if k.reading {
		for i := 0; i < n && k.err == nil; i++ {
			t.restore(k)
		}
	} else {
		t.byName.Ascend(func(r *record) bool { r.fields(k); return true })
	}
	numbers(k, t.appended)
}

func (r *record) fields(k *coder) {
	r.KeyEntry.fields(k)
	k.u64(&r.due)
}

func (t *keys) restore(k *coder) {
	r := &record{}
	if r.fields(k); k.err != nil {
		return
	}
	if t.get(r.Key) != nil {
		k.fail("key twice")
		return
	}
	r.Value = cloned(r.Value)
	t.link(r)
}

// check looks for keys that nothing would ever end, or that end twice (L3).
func (t *keys) check(open func(SessionID) bool) error {
	owned, mortal := 0, 0
	var err error
	t.byName.Ascend(func(r *record) bool {
		if r.Session != 0 {
			owned++
			if !open(r.Session) || !t.owned.Has(r) {
				err = fmt.Errorf("L3: key %q belongs to session %x, which is not open", r.Key, uint64(r.Session))
			}
		}
		if r.due != 0 {
			mortal++
			if r.place >= len(t.mortal) || t.mortal[r.place] != r {
				err = fmt.Errorf("keys: %q is out of its place among the mortal", r.Key)
			}
		}
		return err == nil
	})
	if err == nil && (owned != t.owned.Len() || mortal != len(t.mortal)) {
		err = fmt.Errorf("L3: %d of %d keys have sessions and %d lifetimes; %d and %d are filed", owned, t.byName.Len(), mortal, t.owned.Len(), len(t.mortal))
	}
	return err
}
