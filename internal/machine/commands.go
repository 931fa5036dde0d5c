package machine

// Space separates names of different kinds: a lock and an election may share one.
type Space uint8

// The spaces of names; stored in logs.
const (
	SpaceLock     Space = 1
	SpaceElection Space = 2
)

// OpenSession opens a session. The answer's N is its id. A copy with the nonce of
// an open session of the same node and boot is answered with that session.
type OpenSession struct {
	TTL     uint64 // ns
	Node    string
	Boot    uint64
	Nonce   uint64
	Default bool // the node's own session: default sessions of lower boots of its origin end

	// Origin names the data directory that the node runs on, which one process at a
	// time can have locked; 0 is none. A higher boot of the same origin proves that the
	// process of the lower one is gone. A name proves nothing: it may be in use twice.
	Origin uint64
}

func (m *OpenSession) fields(k *coder) {
	k.u64(&m.TTL)
	k.str(&m.Node)
	k.u64(&m.Boot)
	k.u64(&m.Nonce)
	k.flag(&m.Default)
	k.u64(&m.Origin)
}

// KeepAlive renews sessions. The answer's Body is a KeepAliveAnswer.
type KeepAlive struct{ Sessions []SessionID }

func (m *KeepAlive) fields(k *coder) { u64s(k, &m.Sessions) }

// KeepAliveAnswer has one state per session of the request, in its order.
type KeepAliveAnswer struct{ States []SessionState }

func (m *KeepAliveAnswer) fields(k *coder) { list(k, &m.States) }

// SessionState lets an owner see that notices were lost: it counts all grants of
// waits and all task assignments that the session ever had.
type SessionState struct {
	Open     bool
	Grants   uint64
	Assigned uint64
}

func (m *SessionState) fields(k *coder) {
	k.flag(&m.Open)
	k.u64(&m.Grants)
	k.u64(&m.Assigned)
}

// CloseSession ends the sender's session and all that hangs on it.
type CloseSession struct{}

func (m *CloseSession) fields(*coder) {}

// Expire ends overdue sessions, at most Limit of them, in the order of their
// deadlines. Only the leader proposes it; only it ends a session that did not
// close itself. A session that is overdue in a term later than its last renewal
// is graced once: its deadline moves by Grace (protocol 18).
type Expire struct {
	Limit uint64
	Grace uint64 // ns
}

func (m *Expire) fields(k *coder) { k.u64(&m.Limit); k.u64(&m.Grace) }

// HoldRef names a hold: the session and the sequence of the Acquire that made it
// (protocol 12). A token alone is no identity.
type HoldRef struct {
	Session SessionID
	Seq     uint64
}

func (m *HoldRef) fields(k *coder) { k.u64((*uint64)(&m.Session)); k.u64(&m.Seq) }

// Acquire asks for a lock or a leadership.
type Acquire struct {
	Space     Space
	Name      string
	Try       bool      // do not stand in line
	Label     string    // shown to those it blocks
	Value     []byte    // elections: what the leader announces
	Lineage   []HoldRef // holds in whose context the call is made: the edges of the wait graph (protocol 21)
	LockDelay uint64    // ns the name stays taken after an expiry of this hold
	Score     uint64    // elections: preference; higher goes first, then first come
}

func (m *Acquire) fields(k *coder) {
	k.u8((*uint8)(&m.Space))
	k.str(&m.Name)
	k.flag(&m.Try)
	k.str(&m.Label)
	k.bytes(&m.Value)
	list(k, &m.Lineage)
	k.u64(&m.LockDelay)
	k.u64(&m.Score)
}

// CancelWait ends the wait of the sender's Acquire with sequence Target. If that
// was granted it is released; if it was not applied yet, every late copy of it
// finds itself cancelled (protocol 11). Cancelled: it never held; OK: it held with
// Token and is released; NotFound: it had ended before.
type CancelWait struct {
	Space  Space
	Name   string
	Target uint64
}

func (m *CancelWait) fields(k *coder) {
	k.u8((*uint8)(&m.Space))
	k.str(&m.Name)
	k.u64(&m.Target)
}

// Release frees the sender's hold Target if its token is still Token. NotFound:
// there is no such hold any more, as for a repeated Release beyond the window.
type Release struct {
	Space  Space
	Name   string
	Target uint64
	Token  Token
}

func (m *Release) fields(k *coder) {
	k.u8((*uint8)(&m.Space))
	k.str(&m.Name)
	k.u64(&m.Target)
	k.u64((*uint64)(&m.Token))
}

// Announce changes the value of a leadership that is still current.
type Announce struct {
	Name   string
	Target uint64
	Token  Token
	Value  []byte
}

func (m *Announce) fields(k *coder) {
	k.str(&m.Name)
	k.u64(&m.Target)
	k.u64((*uint64)(&m.Token))
	k.bytes(&m.Value)
}

// Guard makes a transaction depend on a hold or leadership: checked in the same
// apply as the write, so that it needs no clock (P5).
type Guard struct {
	Space Space
	Name  string
	Hold  HoldRef
	Token Token
}

func (m *Guard) fields(k *coder) {
	k.u8((*uint8)(&m.Space))
	k.str(&m.Name)
	m.Hold.fields(k)
	k.u64((*uint64)(&m.Token))
}

// Txn is the one command that changes keys: all conditions hold and all
// operations are done, or nothing is. The answer's Rev is that of the last
// change; its Body is a TxnAnswer.
type Txn struct {
	Guards []Guard
	Checks []Check
	Ops    []KeyOp
}

func (m *Txn) fields(k *coder) {
	list(k, &m.Guards)
	list(k, &m.Checks)
	list(k, &m.Ops)
}

// Check holds if the key's revision is Rev; 0 means that the key does not exist.
type Check struct {
	Key string
	Rev Rev
}

func (m *Check) fields(k *coder) { k.str(&m.Key); k.u64((*uint64)(&m.Rev)) }

// KeyOpKind says what a KeyOp does.
type KeyOpKind uint8

// The operations on keys; stored in logs.
const (
	KeyPut    KeyOpKind = 1
	KeyDelete KeyOpKind = 2
	KeyAppend KeyOpKind = 3 // put at Key + the next number of that directory, 20 digits
)

// KeyOp is one change of a Txn.
type KeyOp struct {
	Kind    KeyOpKind
	Key     string
	Value   []byte
	Session SessionID // ephemeral: the key goes with this session; 0 stays
	TTL     uint64    // ns of cluster time after which the key goes; 0 stays
	WantOld bool      // the answer carries the entry that was replaced
}

func (m *KeyOp) fields(k *coder) {
	k.u8((*uint8)(&m.Kind))
	k.str(&m.Key)
	k.bytes(&m.Value)
	k.u64((*uint64)(&m.Session))
	k.u64(&m.TTL)
	k.flag(&m.WantOld)
}

// TxnAnswer has the key (as made by KeyAppend), revision and old entry of each operation.
type TxnAnswer struct{ Done []KeyDone }

func (m *TxnAnswer) fields(k *coder) { list(k, &m.Done) }

// KeyDone answers one KeyOp.
type KeyDone struct {
	Key    string
	Rev    Rev // 0: a delete of what was not there
	HadOld bool
	Old    KeyEntry
}

func (m *KeyDone) fields(k *coder) {
	k.str(&m.Key)
	k.u64((*uint64)(&m.Rev))
	k.flag(&m.HadOld)
	m.Old.fields(k)
}

// KeyEntry is a key as it stands at a revision.
type KeyEntry struct {
	Key          string
	Value        []byte
	Rev, Created Rev
	Session      SessionID
}

func (m *KeyEntry) fields(k *coder) {
	k.str(&m.Key)
	k.bytes(&m.Value)
	k.u64((*uint64)(&m.Rev))
	k.u64((*uint64)(&m.Created))
	k.u64((*uint64)(&m.Session))
}

// Change is the Body of EventPut and EventDelete.
type Change struct {
	Entry   KeyEntry // of a delete: key and revision of the delete
	HadPrev bool
	Prev    KeyEntry
	Expired bool // a session or a TTL ended it, not a command
}

func (m *Change) fields(k *coder) {
	m.Entry.fields(k)
	k.flag(&m.HadPrev)
	m.Prev.fields(k)
	k.flag(&m.Expired)
}

// Compact forgets history up to and with Rev.
type Compact struct{ Rev Rev }

func (m *Compact) fields(k *coder) { k.u64((*uint64)(&m.Rev)) }

// Add adds to a counter and answers with its new value in N (two's complement).
type Add struct {
	Name  string
	Delta int64
}

func (m *Add) fields(k *coder) { k.str(&m.Name); k.i64(&m.Delta) }

// SwapCounter sets a counter to New if it is Old: OK or Conflict; N is the value after.
type SwapCounter struct {
	Name     string
	Old, New int64
}

func (m *SwapCounter) fields(k *coder) { k.str(&m.Name); k.i64(&m.Old); k.i64(&m.New) }

// IDBlock reserves Size ids of a name; N is the first. Ids carry the incarnation on top.
type IDBlock struct {
	Name string
	Size uint64
}

func (m *IDBlock) fields(k *coder) { k.str(&m.Name); k.u64(&m.Size) }

// QueueSettings are replicated, because apply consults them (protocol 34).
type QueueSettings struct {
	Queue      string
	MaxReady   uint64 // tasks not started, delayed ones included: Submit beyond it is Full; 0 is 1 000 000
	Retention  uint64 // ns of cluster time a finished task is kept, at most 100 000 of them; 0 is one hour
	MaxRunning uint64 // cluster-wide; 0 is no cap
	MaxCrashes uint64 // losses that point at a task, and make it dead (protocol 26); 0 is 3, 255 the most
}

func (m *QueueSettings) fields(k *coder) {
	k.str(&m.Queue)
	k.u64(&m.MaxReady)
	k.u64(&m.Retention)
	k.u64(&m.MaxRunning)
	k.u64(&m.MaxCrashes)
}

// Submit puts tasks in a queue. The answer's Body is a SubmitAnswer. All are taken or none is (Full).
type Submit struct {
	Queue string
	Tasks []TaskSpec
}

func (m *Submit) fields(k *coder) { k.str(&m.Queue); list(k, &m.Tasks) }

// TaskSpec is one task to submit.
type TaskSpec struct {
	Payload  []byte
	Delay    uint64 // ns of cluster time until it is ready
	Priority uint8  // 0 to 9; higher first
	Deadline uint64 // ns of cluster time from the submit after which it is not started any more; 0 never
	Unique   string // "" is not unique
	Window   uint64 // ns of cluster time for which Unique is taken; 0: until the task has ended. The dead and the cancelled free it at once
	OrderKey string // tasks of one key run one at a time, in order
}

func (m *TaskSpec) fields(k *coder) {
	k.bytes(&m.Payload)
	k.u64(&m.Delay)
	k.u8(&m.Priority)
	k.u64(&m.Deadline)
	k.str(&m.Unique)
	k.u64(&m.Window)
	k.str(&m.OrderKey)
}

// SubmitAnswer has the id of each task in order, and which of them are
// duplicates: those ids are of the task that has the unique key.
type SubmitAnswer struct {
	IDs        []TaskID
	Duplicates []uint64 // places in IDs
}

func (m *SubmitAnswer) fields(k *coder) { u64s(k, &m.IDs); u64s(k, &m.Duplicates) }

// Want says how many tasks of a queue the sender's session is ready to be given
// beyond those that it has now. It replaces the earlier wish. Ready tasks are
// assigned in the same apply, and later ones as they become ready, to the
// hungry sessions in turn: an EventAssigned carries them.
type Want struct {
	Queue string
	N     uint64
}

func (m *Want) fields(k *coder) { k.str(&m.Queue); k.u64(&m.N) }

// Assignment is the Body of EventAssigned and of the answer of QueryClaims.
type Assignment struct {
	Queue string
	Tasks []Assigned
	Want  uint64 // what the session is still ready to be given
	Total uint64 // the session's SessionState.Assigned after this
}

func (m *Assignment) fields(k *coder) {
	k.str(&m.Queue)
	list(k, &m.Tasks)
	k.u64(&m.Want)
	k.u64(&m.Total)
}

// Assigned is a task with its current claim (T1). Claims grow with every
// assignment in the ledger; they are not consecutive per task (protocol 39).
type Assigned struct {
	ID         TaskID
	Claim      Token
	Attempt    uint64 // 1 is the first
	Priority   uint8
	OrderKey   string
	Submitted  int64  // the leader's wall clock at the submit, Unix ns
	Deadline   uint64 // cluster time; 0 none
	Checkpoint []byte
	Payload    []byte
	Lost       uint64 // attempts before this one that ended with their worker, not by it
}

func (m *Assigned) fields(k *coder) {
	k.u64((*uint64)(&m.ID))
	k.u64((*uint64)(&m.Claim))
	k.u64(&m.Attempt)
	k.u8(&m.Priority)
	k.str(&m.OrderKey)
	k.i64(&m.Submitted)
	k.u64(&m.Deadline)
	k.bytes(&m.Checkpoint)
	k.bytes(&m.Payload)
	k.u64(&m.Lost)
}

// TaskEnd says how an attempt ended.
type TaskEnd uint8

// The ends of an attempt; stored in logs.
const (
	EndDone    TaskEnd = 1
	EndRetry   TaskEnd = 2 // ready again after Delay; the attempt counts
	EndDead    TaskEnd = 3 // to the dead letters
	EndDiscard TaskEnd = 4 // done and dropped
	EndRelease TaskEnd = 5 // handed back unstarted or snoozed; the attempt does not count
)

// Finish reports ends of attempts, each under the claim it had. The answer's
// Body is a FinishAnswer: which of them changed something.
type Finish struct {
	Queue string
	Ends  []End
}

func (m *Finish) fields(k *coder) { k.str(&m.Queue); list(k, &m.Ends) }

// End is one entry of Finish. Under another claim than the current one it changes nothing (T1).
type End struct {
	ID         TaskID
	Claim      Token
	How        TaskEnd
	Delay      uint64 // ns of cluster time, for EndRetry and EndRelease
	Err        string
	Result     []byte
	Checkpoint []byte
}

func (m *End) fields(k *coder) {
	k.u64((*uint64)(&m.ID))
	k.u64((*uint64)(&m.Claim))
	k.u8((*uint8)(&m.How))
	k.u64(&m.Delay)
	k.str(&m.Err)
	k.bytes(&m.Result)
	k.bytes(&m.Checkpoint)
}

// FinishAnswer lists the places in Ends whose claim was not current.
type FinishAnswer struct{ Refused []uint64 }

func (m *FinishAnswer) fields(k *coder) { u64s(k, &m.Refused) }

// CancelTask ends a task that is not finished. The session of a running one is told by
// EventCancel, and its late Finish is refused. Conflict: it was finished before; Body is its TaskResult.
type CancelTask struct {
	ID     TaskID
	Reason string
}

func (m *CancelTask) fields(k *coder) { k.u64((*uint64)(&m.ID)); k.str(&m.Reason) }

// TaskResult is the Body of EventTask and of the answer of QueryTask.
type TaskResult struct {
	ID       TaskID
	State    string // ready, scheduled, running, done, dead, discarded, cancelled
	Attempts uint64
	Node     string
	Err      string
	Value    []byte
}

func (m *TaskResult) fields(k *coder) {
	k.u64((*uint64)(&m.ID))
	k.str(&m.State)
	k.u64(&m.Attempts)
	k.str(&m.Node)
	k.str(&m.Err)
	k.bytes(&m.Value)
}
