package node

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clatter-go/clatter/internal/vfs"
)

func TestADamagedIdentityIsReportedAndNeverReplaced(t *testing.T) {
	for _, damage := range []string{"", "{", "{}", `{"name":"../x","boot":7}`, `{"name":"n"}`, `{"name":"n","boot":18446744073709551615}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, identityFile)
		require.NoError(t, os.WriteFile(path, []byte(damage), 0o600))
		_, err := claim(vfs.OS(), dir, "")
		require.ErrorContains(t, err, path, "%q", damage)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, damage, string(b))
		_, err = claim(vfs.OS(), dir, "")
		require.NotErrorIs(t, err, ErrDirInUse, "the lock is given back")
	}
}

func TestBootsGrow(t *testing.T) {
	dir, last := t.TempDir(), uint64(0)
	for range 5 {
		id, err := claim(vfs.OS(), dir, "n")
		require.NoError(t, err)
		require.Greater(t, id.Boot, last)
		require.Equal(t, last > 0, id.again)
		last = id.Boot
		require.NoError(t, id.lock.Close())
	}
}

func TestNodesThatMakeTheSecretFileAtOneMomentShareIt(t *testing.T) {
	c := Config{SecretFile: filepath.Join(t.TempDir(), "secret")}
	all := make([]string, 16)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			b, err := c.secret()
			if err != nil {
				t.Error(err)
			}
			all[i] = string(b)
		})
	}
	wg.Wait()
	for _, s := range all {
		require.Equal(t, all[0], s)
		require.Len(t, s, 64)
	}
}
