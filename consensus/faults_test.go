package consensus

import (
	"errors"

	"github.com/clatter-go/clatter/internal/vfs"
)

// breakDisk makes every write fail from now on.
func breakDisk(m *vfs.Mem) {
	m.Fault(func(op vfs.Op) error {
		if op.Kind == vfs.OpWrite || op.Kind == vfs.OpSync {
			return errors.New("input/output error")
		}
		return nil
	})
}

// hangDisk makes every fsync wait until release is called.
func hangDisk(m *vfs.Mem) (release func()) {
	hung := make(chan struct{})
	m.Fault(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync {
			<-hung
		}
		return nil
	})
	return func() { close(hung) }
}
