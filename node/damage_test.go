package node_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/node"
)

func TestDamagedDataIsRefusedAtStartWithItsPlace(t *testing.T) {
	nodes, cfgs := real(t, 1, nil)
	const mark = "a value that is easily found"
	for i := range 50 {
		_, err := nodes[0].KV("").Put(t.Context(), fmt.Sprint(i), []byte(mark))
		require.NoError(t, err)
	}
	require.NoError(t, nodes[0].Close())
	path, at := "", 0
	require.NoError(t, filepath.WalkDir(cfgs[0].Dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		if i := bytes.Index(b, []byte(mark)); i >= 0 {
			path, at = p, i
		}
		return err
	}))
	require.NotEmpty(t, path, "values are stored as they are")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[at] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))

	_, err = node.Start(t.Context(), cfgs[0])
	require.ErrorContains(t, err, filepath.Base(path))
	require.ErrorContains(t, err, "damaged at byte")

	b[at] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
	n, err := node.Start(t.Context(), cfgs[0])
	require.NoError(t, err, "nothing was changed by the refusal")
	require.NoError(t, n.Ready(t.Context()))
	require.NoError(t, n.Close())
}
