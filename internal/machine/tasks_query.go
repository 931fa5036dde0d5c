package machine

// query answers QueryTask, QueryStats and QueryClaims.
func (t *tasks) query(q *Query) Result {
	switch q.Kind {
	case QueryTask:
		x := t.byID[TaskID(q.N)]
		if x == nil {
			return Result{Code: NotFound}
		}
		result := x.result()
		return Result{Body: Encode(&result)}
	case QueryStats:
		stats := t.stats(q.Name)
		return Result{Body: Encode(&stats)}
	}
	s := t.sessions.open(q.Session)
	if s == nil {
		return Result{Code: NoSession}
	}
	claims := t.claimed(s, q.Name)
	return Result{Body: Encode(&claims)}
}

func (x *task) result() TaskResult {
	r := TaskResult{ID: x.id, State: placeNames[x.place], Attempts: uint64(x.attempt)}
	if x.more != nil {
		r.Node, r.Err, r.Value = x.more.node, x.more.err, x.more.value
	}
	if x.owner != nil {
		r.Node = x.owner.owner.node
	}
	return r
}

func (t *tasks) stats(name string) QueueStats {
	q := t.queues[name]
	if q == nil {
		return QueueStats{}
	}
	return QueueStats{
		Ready:     q.count[ready] + q.count[blocked],
		Scheduled: q.count[scheduled],
		Running:   q.count[running],
		Retry:     q.count[retrying],
		Dead:      q.count[dead],
		Done:      q.count[done] + q.count[discarded],
	}
}

// claimed is all that a session has of a queue. It fits one message, by maxClaimed.
func (t *tasks) claimed(s *session, queue string) Assignment {
	all := Assignment{Queue: queue, Total: s.assigned}
	o := t.owners[s.id]
	if o == nil {
		return all
	}
	if i, found := o.find(queue); found {
		w := o.workers[i]
		all.Want = w.want
		for x := w.claims.first; x != nil; x = x.next {
			all.Tasks = append(all.Tasks, x.assigned())
		}
	}
	return all
}
