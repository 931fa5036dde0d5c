package machine

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
)

func init() {
	// txn put k v, del k, append dir v; if k=rev; options of the operation before: ttl=1s session=s1 old; guard=s1/1:x:1
	verbs["txn"] = func(s *script, a args) (Op, Message) { return OpTxn, s.txn(a) }
	verbs["add"] = func(_ *script, a args) (Op, Message) {
		return OpAdd, &Add{Name: a.word(0), Delta: a.signed(a.word(1))}
	}
	verbs["swap"] = func(_ *script, a args) (Op, Message) {
		return OpSwapCounter, &SwapCounter{Name: a.word(0), Old: a.signed(a.word(1)), New: a.signed(a.word(2))}
	}
	verbs["ids"] = func(_ *script, a args) (Op, Message) {
		return OpIDBlock, &IDBlock{Name: a.word(0), Size: a.number(a.word(1))}
	}
	answers[OpTxn] = func(s *script, r Result) string {
		var b TxnAnswer
		require.NoError(s.t, Decode(r.Body, &b))
		var parts []string
		for _, d := range b.Done {
			text := fmt.Sprintf("%s@%d", d.Key, d.Rev)
			if d.HadOld {
				text += " was " + keyText(&d.Old)
			}
			parts = append(parts, text)
		}
		return strings.Join(parts, ", ")
	}
	told[EventPut] = func(s *script, e *Event) string { return s.change(e) }
	told[EventDelete] = told[EventPut]
	queries["key"] = func(s *script, a args) {
		s.show(&Query{Kind: QueryKey, Name: a.word(1)}, func(b []byte) string {
			var e KeyEntry
			require.NoError(s.t, Decode(b, &e))
			return keyText(&e)
		})
	}
	queries["scan"] = func(s *script, a args) {
		q := &Query{Kind: QueryScan, Name: a.option("prefix", ""), After: a.option("after", ""), Limit: a.number(a.option("limit", "0"))}
		s.show(q, func(b []byte) string {
			var l KeyList
			require.NoError(s.t, Decode(b, &l))
			var parts []string
			for i := range l.Entries {
				parts = append(parts, keyText(&l.Entries[i]))
			}
			if l.More {
				parts = append(parts, "more")
			}
			return strings.Join(parts, ", ")
		})
	}
	queries["counter"] = func(s *script, a args) {
		s.show(&Query{Kind: QueryCounter, Name: a.word(1)}, func([]byte) string { return "" })
	}
}

func (s *script) txn(a args) *Txn {
	c := &Txn{}
	for i := 0; i < len(a.words); i++ {
		w := a.words[i]
		name, value, option := strings.Cut(w, "=")
		last := func() *KeyOp {
			require.NotEmpty(s.t, c.Ops, "%s belongs to no operation", w)
			return &c.Ops[len(c.Ops)-1]
		}
		switch {
		case w == "put":
			c.Ops = append(c.Ops, KeyOp{Kind: KeyPut, Key: a.word(i + 1), Value: []byte(a.word(i + 2))})
			i += 2
		case w == "append":
			c.Ops = append(c.Ops, KeyOp{Kind: KeyAppend, Key: a.word(i + 1), Value: []byte(a.word(i + 2))})
			i += 2
		case w == "del":
			c.Ops = append(c.Ops, KeyOp{Kind: KeyDelete, Key: a.word(i + 1)})
			i++
		case w == "if":
			key, rev, _ := strings.Cut(a.word(i+1), "=")
			c.Checks = append(c.Checks, Check{Key: key, Rev: Rev(a.number(rev))})
			i++
		case w == "old":
			last().WantOld = true
		case name == "ttl":
			last().TTL = uint64(mustDuration(s.t, value))
		case name == "session":
			last().Session = s.sessions[value]
		case name == "guard":
			hold, rest, _ := strings.Cut(value, ":")
			who, seq, _ := strings.Cut(hold, "/")
			lock, token, _ := strings.Cut(rest, ":")
			c.Guards = append(c.Guards, Guard{Space: SpaceLock, Name: lock, Hold: HoldRef{s.sessions[who], a.number(seq)}, Token: Token(a.number(token))})
		default:
			require.True(s.t, option && name == "seq", "unknown word %q", w)
		}
	}
	return c
}

func (a args) signed(w string) int64 {
	var n int64
	_, err := fmt.Sscan(w, &n)
	require.NoError(a.t, err)
	return n
}

func keyText(e *KeyEntry) string {
	text := fmt.Sprintf("%s=%s@%d", e.Key, e.Value, e.Rev)
	if e.Created != e.Rev {
		text += fmt.Sprintf(" since %d", e.Created)
	}
	if e.Session != 0 {
		text += fmt.Sprintf(" of session %d", e.Session)
	}
	return text
}

func (s *script) change(e *Event) string {
	var c Change
	require.NoError(s.t, Decode(e.Body, &c))
	require.Equal(s.t, e.Name, c.Entry.Key)
	require.Equal(s.t, e.Rev, c.Entry.Rev)
	text := string(c.Entry.Value)
	if c.HadPrev {
		text += " was " + keyText(&c.Prev)
	}
	if c.Expired {
		text += " expired"
	}
	if e.Last {
		text += " last"
	}
	return strings.TrimSpace(text)
}
