package machine

import (
	"runtime"
	"testing"
)

// BenchmarkApplyTasks is one task from submit to end: a batch of 100 in one command
// each for submit, assignment and end, by three workers in turn. ns/op divided by
// three is a step of a task.
func BenchmarkApplyTasks(b *testing.B) {
	const batch = 100
	l := newLoad(b)
	ids := l.open(3)
	spec := make([]TaskSpec, batch)
	for i := range spec {
		spec[i].Payload = make([]byte, 64)
	}
	submit := &Submit{Queue: "jobs", Tasks: spec}
	var seq uint64
	send := func(s SessionID, op Op, body Message) Outcome {
		seq++
		l.add(Cmd{Session: s, Seq: seq, Floor: seq, Op: op}, body)
		return l.apply(l.entry())
	}
	send(ids[0], OpQueue, &QueueSettings{Queue: "jobs", Retention: 1_000_000_000})
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%batch != 0 {
			continue // an iteration is a task, done with its batch
		}
		s := ids[n/batch%3]
		send(s, OpSubmit, submit)
		out := send(s, OpWant, &Want{Queue: "jobs", N: batch})
		var given Assignment
		if err := Decode(out.Events[len(out.Events)-1].Body, &given); err != nil || len(given.Tasks) != batch {
			b.Fatal(len(given.Tasks), err)
		}
		done := &Finish{Queue: "jobs", Ends: make([]End, batch)}
		for i := range given.Tasks {
			done.Ends[i] = End{ID: given.Tasks[i].ID, Claim: given.Tasks[i].Claim, How: EndDone}
		}
		send(s, OpFinish, done)
	}
}

// BenchmarkApplySingleTasks is one task whose submit, assignment and end are
// commands of their own, 64 of them in an entry.
func BenchmarkApplySingleTasks(b *testing.B) {
	l := newLoad(b)
	ids := l.open(3)
	var seq uint64
	for _, s := range ids {
		seq++
		l.add(Cmd{Session: s, Seq: seq, Op: OpWant}, &Want{Queue: "jobs", N: 1 << 40})
	}
	seq++
	l.add(Cmd{Session: ids[0], Seq: seq, Op: OpQueue}, &QueueSettings{Queue: "jobs", Retention: 1_000_000_000})
	l.apply(l.entry())
	submit := &Submit{Queue: "jobs", Tasks: []TaskSpec{{Payload: make([]byte, 64)}}}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%64 != 0 {
			continue
		}
		for range 64 {
			seq++
			l.add(Cmd{Session: ids[0], Seq: seq, Floor: seq, Op: OpSubmit}, submit)
		}
		out := l.apply(l.entry())
		for i := range out.Events {
			e := &out.Events[i]
			var given Assignment
			if err := Decode(e.Body, &given); err != nil || e.Kind != EventAssigned {
				b.Fatal(e.Kind, err)
			}
			seq++
			l.add(Cmd{Session: e.Session, Seq: seq, Floor: seq, Op: OpFinish}, &Finish{Queue: "jobs", Ends: []End{{ID: given.Tasks[0].ID, Claim: given.Tasks[0].Claim, How: EndDone}}})
		}
		l.apply(l.entry())
	}
}

// BenchmarkMemoryOfReadyTasks holds 200 000 ready tasks of 64 bytes payload and
// reports what one takes, its payload included, and how long a snapshot of one is.
func BenchmarkMemoryOfReadyTasks(b *testing.B) {
	const tasks, batch = 200_000, 1000
	spec := make([]TaskSpec, batch)
	for i := range spec {
		spec[i].Payload = make([]byte, 64)
	}
	for b.Loop() {
		l := newLoad(b)
		ids := l.open(1)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range uint64(tasks / batch) {
			l.add(Cmd{Session: ids[0], Seq: i + 1, Floor: i + 1, Op: OpSubmit}, &Submit{Queue: "jobs", Tasks: spec})
			l.apply(l.entry())
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/tasks, "B/task")
		b.ReportMetric(float64(len(l.m.Encode()))/tasks, "snapshot-B/task")
		runtime.KeepAlive(l)
	}
}
