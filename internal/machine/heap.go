package machine

// timed is an element of a heap.
type timed[T any] interface {
	before(T) bool
	placed(i int) // called whenever the element comes to lie at i
}

// heap is a binary min-heap whose elements know their places, so that one can be
// moved or removed in O(log n). Its order is total by before, so equal contents
// come out in equal order whatever the history.
type heap[T timed[T]] []T

func (h *heap[T]) push(x T) {
	*h = append(*h, x)
	h.up(len(*h) - 1)
}

// fix restores the order after the element at i changed.
func (h *heap[T]) fix(i int) {
	if h.down(i) == i {
		h.up(i)
	}
}

// remove takes the element at i out.
func (h *heap[T]) remove(i int) T {
	old := *h
	x, last := old[i], len(old)-1
	old[i] = old[last]
	var zero T
	old[last] = zero
	*h = old[:last]
	if i < last {
		h.fix(i)
	}
	return x
}

func (h *heap[T]) up(i int) {
	a := *h
	x := a[i]
	for i > 0 && x.before(a[(i-1)/2]) {
		a[i] = a[(i-1)/2]
		a[i].placed(i)
		i = (i - 1) / 2
	}
	a[i] = x
	x.placed(i)
}

func (h *heap[T]) down(i int) int {
	a := *h
	x := a[i]
	for {
		child := 2*i + 1
		if child >= len(a) {
			break
		}
		if child+1 < len(a) && a[child+1].before(a[child]) {
			child++
		}
		if !a[child].before(x) {
			break
		}
		a[i] = a[child]
		a[i].placed(i)
		i = child
	}
	a[i] = x
	x.placed(i)
	return i
}
