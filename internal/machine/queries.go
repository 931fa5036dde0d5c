package machine

// QueryKind says what a Query asks for.
type QueryKind uint8

// The queries, with what they need and what the answer carries.
const (
	QueryLock    QueryKind = 1  // Space, Name: Body is a LockInfo, N counts the waiters, Rev is the store's; NotFound for a name never used
	QueryWait    QueryKind = 2  // Session, Seq, Space, Name: OK with Token if granted, Queued with N the place, Cancelled, NotFound (released, or never applied), NoSession
	QuerySession QueryKind = 3  // Session: Body is a SessionState; NoSession
	QueryKey     QueryKind = 10 // Name: Body is a KeyEntry; Rev is the store's; NotFound
	QueryScan    QueryKind = 11 // Name is a prefix, After the key to go on after, Limit entries and 1 MiB at most: Body is a KeyList; Rev is the store's
	QueryHistory QueryKind = 12 // Name is a topic's prefix, Rev: Body is an EventList of what came after Rev (Topic says of which kind), Limit events and about 1 MiB at most; the answer's Rev is how far it is complete, N is 1 if more follows; Compacted
	QueryCounter QueryKind = 20 // Name: N is the value (two's complement); 0 for an unused name
	QueryTask    QueryKind = 30 // N is the id: Body is a TaskResult; NotFound
	QueryStats   QueryKind = 31 // Name is a queue: Body is a QueueStats
	QueryClaims  QueryKind = 32 // Session, Name is a queue: Body is an Assignment of all that the session has claimed
)

// Query is a read of the state. It changes nothing and needs no session.
type Query struct {
	Kind    QueryKind
	Space   Space
	Session SessionID
	Seq     uint64
	Rev     Rev
	N       uint64
	Limit   uint64
	Name    string
	After   string
	Topic   Topic
}

func (m *Query) fields(k *coder) {
	k.u8((*uint8)(&m.Kind))
	k.u8((*uint8)(&m.Space))
	k.u64((*uint64)(&m.Session))
	k.u64(&m.Seq)
	k.u64((*uint64)(&m.Rev))
	k.u64(&m.N)
	k.u64(&m.Limit)
	k.str(&m.Name)
	k.str(&m.After)
	k.u8((*uint8)(&m.Topic))
}

// Topic is a kind of observable events that can be watched.
type Topic uint8

// The topics.
const (
	TopicKeys     Topic = 1 // EventPut, EventDelete by key prefix
	TopicElection Topic = 2 // EventLeader by exact name
	TopicTasks    Topic = 3 // EventTask by exact queue name; not kept as history
)

// Matches reports whether e belongs to the topic and its name.
func (t Topic) Matches(name string, e *Event) bool {
	switch t {
	case TopicKeys:
		return (e.Kind == EventPut || e.Kind == EventDelete) && len(e.Name) >= len(name) && e.Name[:len(name)] == name
	case TopicElection:
		return e.Kind == EventLeader && e.Name == name
	case TopicTasks:
		return e.Kind == EventTask && e.Name == name
	}
	return false
}

// Owner is who holds or waits.
type Owner struct {
	Node  string
	Label string
	Hold  HoldRef
	Token Token // 0 while waiting
	Since int64 // the leader's wall clock, Unix ns: for people
	Value []byte
}

func (m *Owner) fields(k *coder) {
	k.str(&m.Node)
	k.str(&m.Label)
	m.Hold.fields(k)
	k.u64((*uint64)(&m.Token))
	k.i64(&m.Since)
	k.bytes(&m.Value)
}

// LockInfo is a lock or an election: who has it and who stands in line, in order.
type LockInfo struct {
	Name    string
	Last    Token // the last token given
	Holders []Owner
	Waiters []Owner
}

func (m *LockInfo) fields(k *coder) {
	k.str(&m.Name)
	k.u64((*uint64)(&m.Last))
	list(k, &m.Holders)
	list(k, &m.Waiters)
}

// LeaderInfo is the Body of EventLeader.
type LeaderInfo struct {
	Node   string
	Value  []byte
	Epoch  Token
	Vacant bool
}

func (m *LeaderInfo) fields(k *coder) {
	k.str(&m.Node)
	k.bytes(&m.Value)
	k.u64((*uint64)(&m.Epoch))
	k.flag(&m.Vacant)
}

// Edge of a wait graph: Waiter stands in line for Lock, which Holder has.
type Edge struct {
	Lock           string
	Waiter, Holder Owner
}

func (m *Edge) fields(k *coder) {
	k.str(&m.Lock)
	m.Waiter.fields(k)
	m.Holder.fields(k)
}

// Cycle is the Body of a Deadlock: each edge's holder waits in the next edge.
type Cycle struct{ Edges []Edge }

func (m *Cycle) fields(k *coder) { list(k, &m.Edges) }

// KeyList is a page of a scan, sorted by key.
type KeyList struct {
	Entries []KeyEntry
	More    bool
}

func (m *KeyList) fields(k *coder) { list(k, &m.Entries); k.flag(&m.More) }

// EventList is a stretch of history, in order.
type EventList struct{ Events []Event }

func (m *EventList) fields(k *coder) { list(k, &m.Events) }

// QueueStats counts the tasks of a queue by state.
type QueueStats struct{ Ready, Scheduled, Running, Retry, Dead, Done uint64 }

func (m *QueueStats) fields(k *coder) {
	k.u64(&m.Ready)
	k.u64(&m.Scheduled)
	k.u64(&m.Running)
	k.u64(&m.Retry)
	k.u64(&m.Dead)
	k.u64(&m.Done)
}
