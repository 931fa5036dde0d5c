package machine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the output of the scripts in testdata anew")

// TestScripts plays testdata/*.txt: a command a line, what came of it indented
// below. Lines that begin with # are for the reader. After every command the
// invariants hold, a snapshot restores to the same state, and a second machine fed
// the same entries agrees.
func TestScripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			got := newScript(t).play(string(text))
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

// script is a run of one file.
type script struct {
	t        testing.TB
	m, twin  *Machine
	index    uint64
	term     uint64
	clock    time.Duration
	sessions map[string]SessionID
	names    map[SessionID]string
	seqs     map[string]uint64
	sent     map[string]Cmd // by "session/seq"
	log      [][]byte       // all entries
	out      strings.Builder
}

func newScript(t testing.TB) *script {
	return &script{
		t: t, m: New(), twin: New(), term: 1,
		sessions: map[string]SessionID{}, names: map[SessionID]string{}, seqs: map[string]uint64{}, sent: map[string]Cmd{},
	}
}

func (s *script) play(text string) string {
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "  "):
			continue // the former output
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			s.out.WriteString(line)
			continue
		}
		s.out.WriteString(line)
		s.run(strings.Fields(line))
	}
	return s.out.String()
}

// printf writes one line of output.
func (s *script) printf(format string, args ...any) {
	fmt.Fprintf(&s.out, "  "+format+"\n", args...)
}

// verbs are the commands that a session sends: `session verb arguments`.
var verbs = map[string]func(s *script, a args) (Op, Message){
	"acquire": func(s *script, a args) (Op, Message) { return OpAcquire, s.acquire(SpaceLock, a) },
	"stand":   func(s *script, a args) (Op, Message) { return OpAcquire, s.acquire(SpaceElection, a) },
	"cancel": func(_ *script, a args) (Op, Message) {
		return OpCancelWait, &CancelWait{Space: a.space(), Name: a.word(0), Target: a.number(a.word(1))}
	},
	"release": func(_ *script, a args) (Op, Message) {
		return OpRelease, &Release{Space: a.space(), Name: a.word(0), Target: a.number(a.word(1)), Token: Token(a.number(a.word(2)))}
	},
	"announce": func(_ *script, a args) (Op, Message) {
		return OpAnnounce, &Announce{Name: a.word(0), Target: a.number(a.word(1)), Token: Token(a.number(a.word(2))), Value: []byte(a.word(3))}
	},
	"compact": func(_ *script, a args) (Op, Message) { return OpCompact, &Compact{Rev: Rev(a.number(a.word(0)))} },
	"close":   func(*script, args) (Op, Message) { return OpCloseSession, &CloseSession{} },
	"op":      func(_ *script, a args) (Op, Message) { return Op(a.number(a.word(0))), &CloseSession{} },
}

// answers print the bodies of results, by op.
var answers = map[Op]func(s *script, r Result) string{
	OpAcquire: func(s *script, r Result) string {
		switch r.Code {
		case Locked:
			var info LockInfo
			require.NoError(s.t, Decode(r.Body, &info))
			return s.lock(&info)
		case Deadlock:
			var c Cycle
			require.NoError(s.t, Decode(r.Body, &c))
			var edges []string
			for _, e := range c.Edges {
				edges = append(edges, fmt.Sprintf("%s waits for %s held by %s", s.ref(e.Waiter.Hold), e.Lock, s.ref(e.Holder.Hold)))
			}
			return strings.Join(edges, ", ")
		}
		return string(r.Body)
	},
}

// told prints the bodies of events, by kind.
var told = map[EventKind]func(s *script, e *Event) string{
	EventLeader: func(s *script, e *Event) string {
		var l LeaderInfo
		require.NoError(s.t, Decode(e.Body, &l))
		if l.Vacant {
			return fmt.Sprintf("vacant after epoch %d", l.Epoch)
		}
		return fmt.Sprintf("node %s epoch %d %s", l.Node, l.Epoch, l.Value)
	},
}

func (s *script) run(words []string) {
	a := args{s.t, words[1:]}
	switch verb := words[0]; verb {
	case "at":
		d, err := time.ParseDuration(a.word(0))
		require.NoError(s.t, err)
		s.clock = d
	case "term":
		s.term = a.number(a.word(0))
	case "tick":
		s.apply(Cmd{Op: OpTick})
	case "expire":
		s.apply(Cmd{Op: OpExpire, Body: Encode(&Expire{Limit: a.number(a.option("limit", "1000")), Grace: a.duration("grace")})})
	case "keepalive":
		var k KeepAlive
		for _, name := range a.words {
			k.Sessions = append(k.Sessions, s.sessions[name])
		}
		s.apply(Cmd{Op: OpKeepAlive, Body: Encode(&k)})
	case "again":
		who, seq, _ := strings.Cut(a.word(0), "/")
		c, ok := s.sent[who+"/"+seq]
		require.True(s.t, ok, "%s was not sent", a.word(0))
		s.apply(c)
	case "query":
		s.query(a)
	default:
		s.bySession(verb, a)
	}
}

// bySession runs `name open ...` and `name verb ... [seq=] [floor=] [done=]`.
func (s *script) bySession(name string, a args) {
	if a.word(0) == "open" {
		origin := uint64(0) // each node name has a directory of its own
		for _, c := range []byte(a.word(1)) {
			origin = origin<<8 | uint64(c)
		}
		r := s.apply(Cmd{Op: OpOpenSession, Body: Encode(&OpenSession{
			Origin: a.number(a.option("origin", fmt.Sprint(origin))),
			Node:   a.word(1), TTL: uint64(mustDuration(s.t, a.word(2))), Default: a.has("default"),
			Boot: a.number(a.option("boot", "1")), Nonce: a.number(a.option("nonce", "0")),
		})})
		if id := SessionID(r.N); r.Code == OK {
			s.sessions[name], s.names[id] = id, name
		}
		return
	}
	verb, ok := verbs[a.word(0)]
	require.True(s.t, ok, "unknown command %q", a.words)
	a.words = a.words[1:]
	op, body := verb(s, a)
	c := Cmd{Session: s.sessions[name], Op: op, Body: Encode(body)}
	c.Seq = a.number(a.option("seq", strconv.FormatUint(s.seqs[name]+1, 10)))
	c.Floor = a.number(a.option("floor", "0"))
	if done := a.option("done", ""); done != "" {
		for _, d := range strings.Split(done, ",") {
			c.Done = append(c.Done, a.number(d))
		}
	}
	s.seqs[name] = max(s.seqs[name], c.Seq)
	s.sent[fmt.Sprintf("%s/%d", name, c.Seq)] = c
	s.apply(c)
}

// apply applies an entry of one command and prints what came of it.
func (s *script) apply(c Cmd) Result {
	s.index++
	entry := AppendEntry(nil, Stamp{Clock: uint64(s.clock), Wall: int64(s.clock)}, [][]byte{Encode(&c)})
	s.log = append(s.log, entry)
	out, err := s.m.Apply(s.index, s.term, entry)
	require.NoError(s.t, err)
	require.NoError(s.t, s.m.Check())
	_, err = s.twin.Apply(s.index, s.term, entry)
	require.NoError(s.t, err)
	require.Equal(s.t, s.m.Hash(), s.twin.Hash(), "two machines with one log differ")
	copied := New()
	require.NoError(s.t, copied.Restore(s.m.Encode()))
	require.Equal(s.t, s.m.Digest(), copied.Digest(), "a snapshot changes the state")
	s.twin = copied // so that it also plays on from every snapshot
	r := out.Answers[0].Result
	s.printResult(c, r)
	for i := range out.Events {
		s.printEvent(&out.Events[i])
	}
	return r
}

func (s *script) printResult(c Cmd, r Result) {
	parts := []string{codeNames[r.Code]}
	if c.Session != 0 {
		parts[0] = s.ref(HoldRef{c.Session, c.Seq}) + " " + parts[0]
	}
	if r.Token != 0 {
		parts = append(parts, fmt.Sprintf("token %d", r.Token))
	}
	if r.Rev != 0 {
		parts = append(parts, fmt.Sprintf("rev %d", r.Rev))
	}
	if r.N != 0 {
		parts = append(parts, fmt.Sprintf("n %d", r.N))
	}
	if show := answers[c.Op]; show != nil && len(r.Body) > 0 && r.Code != Invalid {
		parts = append(parts, show(s, r))
	} else if c.Op == OpKeepAlive {
		parts = append(parts, s.states(r.Body))
	} else {
		parts = append(parts, string(r.Body))
	}
	s.printf("%s", strings.TrimSpace(strings.Join(parts, " ")))
}

func (s *script) printEvent(e *Event) {
	line := "* " + eventNames[e.Kind]
	if e.Session != 0 {
		line = "-> " + s.names[e.Session] + " " + eventNames[e.Kind]
	}
	if e.Name != "" {
		line += " " + e.Name
	}
	if e.Seq != 0 {
		line += fmt.Sprintf(" seq %d", e.Seq)
	}
	if e.Token != 0 && e.Session != 0 {
		line += fmt.Sprintf(" token %d", e.Token)
	}
	if e.Rev != 0 {
		line += fmt.Sprintf(" rev %d", e.Rev)
	}
	if show := told[e.Kind]; show != nil {
		line += " " + show(s, e)
	}
	s.printf("%s", strings.TrimSpace(line))
}

var codeNames = map[Code]string{
	OK: "ok", Queued: "queued", Locked: "locked", Deadlock: "deadlock", NoSession: "no session", Stale: "stale",
	Conflict: "conflict", NotFound: "not found", StaleToken: "stale token", Full: "full", Invalid: "invalid",
	Duplicate: "duplicate", Compacted: "compacted", Unknown: "unknown", Cancelled: "cancelled", WindowFull: "window full",
}

var eventNames = map[EventKind]string{
	EventGranted: "granted", EventAssigned: "assigned", EventClosed: "closed", EventPut: "put", EventDelete: "delete",
	EventLeader: "leader", EventTask: "task", EventCancel: "cancel",
}

func (s *script) states(body []byte) string {
	var a KeepAliveAnswer
	require.NoError(s.t, Decode(body, &a))
	var parts []string
	for _, st := range a.States {
		parts = append(parts, fmt.Sprintf("%+v", st))
	}
	return strings.Join(parts, " ")
}

func (s *script) ref(h HoldRef) string { return fmt.Sprintf("%s/%d", s.names[h.Session], h.Seq) }

func (s *script) lock(i *LockInfo) string {
	text := fmt.Sprintf("last %d", i.Last)
	for _, o := range i.Holders {
		text += fmt.Sprintf(", held by %s (%s) token %d", s.ref(o.Hold), strings.Trim(o.Node+" "+o.Label, " "), o.Token)
	}
	for _, o := range i.Waiters {
		text += ", then " + s.ref(o.Hold)
	}
	return text
}

// args are the words after the verb; options are words like delay=5s.
type args struct {
	t     testing.TB
	words []string
}

func (a args) word(i int) string {
	require.Greater(a.t, len(a.words), i, "too few words: %q", a.words)
	return a.words[i]
}

func (a args) has(word string) bool {
	for _, w := range a.words {
		if w == word {
			return true
		}
	}
	return false
}

func (a args) option(name, without string) string {
	for _, w := range a.words {
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v
		}
	}
	return without
}

func (a args) duration(name string) uint64 {
	return uint64(mustDuration(a.t, a.option(name, "0")))
}

func (a args) number(w string) uint64 {
	n, err := strconv.ParseUint(w, 10, 64)
	require.NoError(a.t, err)
	return n
}

func (a args) space() Space {
	if a.has("election") {
		return SpaceElection
	}
	return SpaceLock
}

func mustDuration(t testing.TB, w string) time.Duration {
	d, err := time.ParseDuration(w)
	require.NoError(t, err)
	return d
}

func (s *script) acquire(space Space, a args) Message {
	c := &Acquire{
		Space: space, Name: a.word(0), Try: a.has("try"), Label: a.option("label", ""), Value: []byte(a.option("value", "")),
		LockDelay: a.duration("delay"), Score: a.number(a.option("score", "0")),
	}
	if under := a.option("under", ""); under != "" {
		for _, u := range strings.Split(under, ",") {
			who, seq, _ := strings.Cut(u, "/")
			c.Lineage = append(c.Lineage, HoldRef{s.sessions[who], a.number(seq)})
		}
	}
	return c
}

// query runs `query lock x`, `query wait s1/3 x`, `query session s1`, `query history election x after=3`.
func (s *script) query(a args) {
	q := Query{Space: a.space()}
	switch what := a.word(0); what {
	case "lock":
		q.Kind, q.Name = QueryLock, a.word(1)
	case "wait":
		who, seq, _ := strings.Cut(a.word(1), "/")
		q.Kind, q.Session, q.Seq, q.Name = QueryWait, s.sessions[who], a.number(seq), a.word(2)
	case "session":
		q.Kind, q.Session = QuerySession, s.sessions[a.word(1)]
	case "history":
		q.Kind, q.Topic, q.Name = QueryHistory, TopicElection, a.word(2)
		if a.word(1) == "keys" {
			q.Topic = TopicKeys
		}
		q.Rev, q.Limit = Rev(a.number(a.option("after", "0"))), a.number(a.option("limit", "0"))
	default:
		extra, ok := queries[what]
		require.True(s.t, ok, "unknown query %q", what)
		extra(s, a)
		return
	}
	r := s.m.Query(&q)
	body := ""
	switch {
	case r.Code != OK || len(r.Body) == 0:
	case q.Kind == QueryLock:
		var i LockInfo
		require.NoError(s.t, Decode(r.Body, &i))
		body = s.lock(&i)
	case q.Kind == QuerySession:
		var st SessionState
		require.NoError(s.t, Decode(r.Body, &st))
		body = fmt.Sprintf("%+v", st)
	}
	s.printResult(Cmd{}, Result{Code: r.Code, Token: r.Token, Rev: r.Rev, N: r.N, Body: []byte(body)})
	if q.Kind == QueryHistory && r.Code == OK {
		var l EventList
		require.NoError(s.t, Decode(r.Body, &l))
		for i := range l.Events {
			s.printEvent(&l.Events[i])
		}
	}
}

// queries are further queries, by their first word.
var queries = map[string]func(s *script, a args){}
