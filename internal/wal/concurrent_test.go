package wal

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"

	"github.com/clatter-go/clatter/internal/vfs"
)

// Each of these changes makes it fail, most of them only under -race:
//   - readBack does not hold files: it reads segments that are being filled with zeros;
//   - retire does not hold write: Append looks at an index that changes;
//   - Entries hands out the tail itself and not a copy, read after mu is released;
//   - OpenSnapshot does not hold files: the file is removed before it is opened.
func TestReadersSnapshotsAndCompactionRunBesideAppends(t *testing.T) {
	o := options(vfs.NewMem())
	o.TailBytes = 2 << 10
	l := created(t, o)
	const total = 1500
	var wg sync.WaitGroup
	stop := make(chan struct{})
	until := func(round func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					round()
				}
			}
		})
	}
	until(func() { readEverything(t, l) })
	until(func() { readSnapshot(t, l) })
	until(func() {
		last, _ := l.LastIndex()
		err := l.SaveSnapshot(last, voters, func(w io.Writer) error {
			_, err := io.WriteString(w, strings.Repeat(fmt.Sprint(last, " "), 100))
			return err
		})
		if err != nil && !errors.Is(err, raft.ErrSnapOutOfDate) {
			t.Error(err)
		}
		if err := l.Compact(last - last/10); err != nil {
			t.Error(err)
		}
	})
	for i := uint64(2); i < total; i++ {
		if err := l.Append(hard(2, 8, i-1), entries(i, i, 2, 200), true); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	before := contentOf(t, l)
	require.NoError(t, l.Close())
	require.Equal(t, before, contentOf(t, opened(t, o)))
}

func readEverything(t *testing.T, l *Log) {
	first, _ := l.FirstIndex()
	last, _ := l.LastIndex()
	ents, err := l.Entries(first, last+1, 1<<30)
	if errors.Is(err, raft.ErrCompacted) {
		return
	}
	if err != nil || uint64(len(ents)) != last+1-first {
		t.Errorf("%d entries of %d to %d: %v", len(ents), first, last, err)
		return
	}
	for i, e := range ents {
		index := first + uint64(i)
		if e.GetIndex() != index || !strings.HasPrefix(string(e.GetData()), fmt.Sprintf("entry %d of", index)) {
			t.Errorf("entry %d is %v", index, e)
			return
		}
	}
}

func readSnapshot(t *testing.T, l *Log) {
	meta, r, err := l.OpenSnapshot()
	if err != nil {
		t.Error(err)
		return
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	want := strings.Repeat(fmt.Sprint(meta.GetIndex(), " "), 100)
	if err != nil || meta.GetIndex() > 1 && string(b) != want {
		t.Errorf("snapshot %d has %d bytes: %v", meta.GetIndex(), len(b), err)
	}
}
