package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/clatter-go/clatter/"

// source is one parsed file.
type source struct {
	path  string // from the root of the module, with slashes
	room  string // its folder
	test  bool
	text  *ast.File
	lines int
}

func (s *source) imports() (all []string) {
	for _, i := range s.text.Imports {
		all = append(all, strings.Trim(i.Path.Value, `"`))
	}
	return all
}

// tree parses the whole module once.
func tree(t *testing.T) (files []*source, set *token.FileSet) {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	set = token.NewFileSet()
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		files = append(files, &source{
			path: rel, room: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(name, "_test.go"),
			text: f, lines: set.File(f.Pos()).LineCount(),
		})
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, len(files), 20, "the tree was not found")
	return files, set
}

// under reports whether room is one of the folders or below one of them.
func under(room string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return room == f || strings.HasPrefix(room, f+"/") })
}
