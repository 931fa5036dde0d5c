package machine

// tasks is the ledger: queues of tasks, who works on which, and what came of them.
//
// A task is in exactly one place (T2) and changes it in [tasks.move] only. While it
// runs it has a claim, a number that no other assignment in the ledger ever had
// (T1); an attempt ends under its own claim or not at all. A task whose worker was
// lost is a suspect: it may be what killed it. A session has one suspect at a time,
// so that a second loss points at one task, and the innocent are cleared by ending
// their next attempt (protocol 26).
type tasks struct {
	queues   map[string]*queue
	byID     map[TaskID]*task
	owners   map[SessionID]*owner
	alarms   heap[alarm]   // at most one for a task
	windows  heap[*unique] // of unique keys
	blames   []blame
	claims   Token // the last one given
	limit    taskLimit
	sessions *sessions

	// These are empty between commands.
	dirty []*queue  // something may have become assignable
	given []*worker // were given tasks and not told yet
	batch []Assigned
}

// taskLimit holds the bounds that apply consults; they are part of the state.
type taskLimit struct {
	Pending  uint64 // bytes of unfinished tasks of a queue: Full beyond it
	Finished uint64 // finished tasks that a queue keeps, however long they should be
	Kept     uint64 // and their bytes
	Claimed  uint64 // weight of claims from which on a worker is given no more: with one task beyond it all fit one message
}

func newTasks() tasks {
	return tasks{
		queues: map[string]*queue{}, byID: map[TaskID]*task{}, owners: map[SessionID]*owner{},
		limit: taskLimit{Pending: 1 << 30, Finished: 100_000, Kept: 256 << 20, Claimed: 2 << 20},
	}
}

// queue is one name. It lives for ever, as its settings do.
type queue struct {
	settings  QueueSettings
	count     [places]uint64 // of tasks by place
	ready     [priorities][ranks]taskList
	scheduled taskList
	retrying  taskList
	finished  taskList // the oldest first
	lanes     map[string]*lane
	uniques   map[string]*unique
	hungry    workerRing
	pending   uint64 // bytes of unfinished tasks
	kept      uint64 // bytes of finished tasks
	dirty     bool
}

const (
	priorities       = 10
	maxPayload       = 1 << 20 // of a payload and of a result
	maxCheckpoint    = 256 << 10
	maxErr           = 4 << 10 // of an error text; what is longer is cut
	maxOrderKey      = 256     // likewise of a unique key
	taskWeight       = 128     // of a task in a message, beside its bytes
	defaultReady     = 1_000_000
	defaultRetention = 3600 * 1_000_000_000
	defaultCrashes   = 3
)

// place is where a task is.
type place uint8

const (
	nowhere   place = iota
	ready           // in line
	blocked         // behind another of its OrderKey
	scheduled       // delayed
	retrying        // delayed after an attempt that was in vain
	running
	done // this and what follows is finished
	dead
	discarded
	cancelled
	places
)

var placeNames = [places]string{"", "ready", "ready", "scheduled", "scheduled", "running", "done", "dead", "discarded", "cancelled"}

// rank orders the ready tasks of one priority.
type rank uint8

const (
	suspects rank = iota // whose worker was lost
	returned             // handed back without an attempt
	fresh
	ranks
)

// task is one task. There may be a million of them: what few have is in more.
type task struct {
	id         TaskID
	queue      *queue
	lane       *lane   // nil without an OrderKey
	owner      *worker // while running
	prev, next *task   // in the list of its place
	claim      Token   // the last one
	payload    []byte  // dropped with the end, unless it is dead
	submitted  int64   // wall clock
	more       *extras // nil if all of it is zero
	attempt    uint32  // the last one given out
	lost       uint32  // attempts that ended with their worker
	alarm      int32   // 1 + place in alarms; 0 is none
	priority   uint8
	rank       rank
	place      place
	crashes    uint8 // losses that point at this task
}

// extras is what few tasks have, and the outcome of finished ones.
type extras struct {
	unique     *unique
	deadline   uint64 // cluster time; 0 none
	at         uint64 // cluster time until which it is delayed, or at which it ended
	checkpoint []byte
	value      []byte
	err        string
	node       string // of the last worker
}

func (x *task) extra() *extras {
	if x.more == nil {
		x.more = &extras{}
	}
	return x.more
}

// lane is an OrderKey: its head is ready, delayed or running, the others wait for its end.
type lane struct {
	key     string
	head    *task
	blocked taskList
}

// unique is a key that is taken: until a time, or without one until its task ends.
type unique struct {
	queue *queue
	key   string
	id    TaskID
	until uint64
	place int // in windows
}

func (u *unique) before(v *unique) bool {
	return u.until < v.until || u.until == v.until && u.id < v.id
}

func (u *unique) placed(i int) { u.place = i }

// alarm is the next thing that time does to a task.
type alarm struct {
	at   uint64
	task *task
}

func (l alarm) before(o alarm) bool { return l.at < o.at || l.at == o.at && l.task.id < o.task.id }

func (l alarm) placed(i int) { l.task.alarm = int32(i) + 1 }

// list is the list of the place where the task is.
func (x *task) list() *taskList {
	switch x.place {
	case nowhere:
		return nil
	case ready:
		return &x.queue.ready[x.priority][x.rank]
	case blocked:
		return &x.lane.blocked
	case scheduled:
		return &x.queue.scheduled
	case retrying:
		return &x.queue.retrying
	case running:
		return &x.owner.claims
	}
	return &x.queue.finished
}

// move brings a task to the end of another place; w is its worker there. It is the
// only function that does, so T2 is kept here or nowhere.
func (t *tasks) move(x *task, to place, w *worker) {
	q := x.queue
	if l := x.list(); l != nil {
		l.remove(x)
		q.count[x.place]--
	}
	if x.owner != nil {
		t.leave(x)
	}
	x.place, x.owner = to, w
	if l := x.list(); l != nil {
		l.push(x)
		q.count[to]++
	}
	t.setAlarm(x)
}

// wakes returns when time does something to the task; 0 is never.
func (x *task) wakes() uint64 {
	switch {
	case x.more == nil || x.place == nowhere || x.place == running:
		return 0
	case x.place >= done:
		if x.queue.finished.first != x { // those behind it are forgotten later
			return 0
		}
		return later(x.more.at, x.queue.settings.Retention)
	case x.place == ready || x.place == blocked || x.more.deadline != 0 && x.more.deadline < x.more.at:
		return x.more.deadline
	}
	return x.more.at
}

// setAlarm sets the alarm to when the task wakes now.
func (t *tasks) setAlarm(x *task) {
	at, i := x.wakes(), int(x.alarm)-1
	switch {
	case i < 0 && at != 0:
		t.alarms.push(alarm{at, x})
	case i >= 0 && at == 0:
		t.alarms.remove(i)
		x.alarm = 0
	case i >= 0 && t.alarms[i].at != at:
		t.alarms[i].at = at
		t.alarms.fix(i)
	}
}

func (t *tasks) due(a *apply) {
	for len(t.windows) > 0 && t.windows[0].until <= a.clock {
		t.free(t.windows[0])
	}
	for len(t.alarms) > 0 && t.alarms[0].at <= a.clock {
		x := t.alarms[0].task
		switch {
		case x.place >= done:
			t.forget(x)
		case x.late(a):
			t.conclude(a, x, dead, "deadline", nil)
		default:
			t.move(x, ready, nil)
			t.touch(x.queue)
		}
	}
	t.settle(a)
}

// late reports whether the task may not be started any more.
func (x *task) late(a *apply) bool {
	return x.more != nil && x.more.deadline != 0 && x.more.deadline <= a.clock
}

func (t *tasks) next() (clock uint64, some bool) {
	if len(t.windows) > 0 {
		clock, some = t.windows[0].until, true
	}
	if len(t.alarms) > 0 && (!some || t.alarms[0].at < clock) {
		clock, some = t.alarms[0].at, true
	}
	return clock, some
}
