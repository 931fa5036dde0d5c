package node_test

import (
	"os"

	"golang.org/x/sys/unix"
)

func datasync(f *os.File) { _ = unix.Fdatasync(int(f.Fd())) }
