//go:build !linux

package node_test

import "os"

func datasync(f *os.File) { _ = f.Sync() }
