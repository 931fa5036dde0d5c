package tidy

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// floors says on what each room may stand. Whatever is missing here is forbidden:
// a new arrow between rooms is a decision, made by editing this table.
var floors = map[string][]string{
	"internal/machine":  {},
	"internal/founding": {},
	"internal/deque":    {},
	"internal/vfs":      {},
	"internal/tidy":     {},
	"internal/wire":     {},
	"internal/seam":     {"internal/vfs"},
	"internal/wal":      {"internal/vfs"},
	"internal/replica":  {"internal/machine", "internal/wal"},
	"internal/sim":      {"internal/machine", "internal/founding", "internal/replica", "internal/wal", "internal/vfs"},

	"transport":              {"internal/wire", "transport"},
	"transport/memnet":       {},
	"membership":             {"internal/wire", "transport"},
	"consensus":              {"internal/wire", "internal/machine", "internal/founding", "internal/replica", "internal/wal", "internal/vfs", "transport"},
	"consensus/session":      {"internal/machine", "consensus"},
	"consensus/internal":     {"internal/machine", "consensus", "consensus/session"},
	"consensus/lock":         {"internal/machine", "consensus", "consensus/session", "consensus/internal/hold"},
	"consensus/election":     {"internal/machine", "consensus", "consensus/session", "consensus/internal/hold", "consensus/lock"},
	"consensus/kv":           {"internal/machine", "internal/wire", "consensus", "consensus/session", "consensus/lock"},
	"consensus/counter":      {"internal/machine", "consensus/session"},
	"workqueue":              {"internal/machine", "internal/wire", "internal/deque", "consensus", "consensus/session", "consensus/lock", "consensus/kv"},
	"node":                   {"internal/machine", "internal/seam", "internal/vfs", "transport", "membership", "consensus", "workqueue"},
	"node/nodetest":          {"internal/seam", "internal/vfs", "transport/memnet", "node"},
	"node/nodetest/testnode": {"node", "consensus"},
	"examples":               {"node", "membership", "consensus", "workqueue"},
}

func floorOf(room string) ([]string, bool) {
	for r := room; ; r = r[:max(strings.LastIndex(r, "/"), 0)] {
		if allowed, ok := floors[r]; ok || r == "" {
			return allowed, ok
		}
	}
}

func TestRoomsStandOnTheirFloors(t *testing.T) {
	files, _ := tree(t)
	for _, f := range files {
		if f.test {
			continue // tests may look at whatever they stand beside
		}
		allowed, known := floorOf(f.room)
		require.True(t, known, "%s: room %s has no line in the table of floors", f.path, f.room)
		for _, path := range f.imports() {
			if room, ours := strings.CutPrefix(path, module); ours {
				require.True(t, under(room, allowed...), "%s imports %s, which is not below it", f.path, room)
			}
		}
	}
}

// homes says where a library may be imported. Users' binaries get nothing else.
var homes = map[string][]string{
	"github.com/hashicorp/memberlist":   {"membership"},
	"github.com/quic-go/quic-go":        {"transport"},
	"github.com/vmihailenco/msgpack/v5": {"internal/wire"},
	"go.etcd.io/raft/v3":                {"internal/replica", "internal/wal", "internal/sim", "consensus"},
	"google.golang.org/protobuf":        {"internal/replica", "internal/wal", "internal/sim", "consensus"},
	"github.com/google/btree":           {"internal/machine"},
	"golang.org/x/crypto":               {"transport"},
	"golang.org/x/net":                  {"transport"},
	"golang.org/x/sys":                  {"internal/vfs", "consensus/session"},
	"github.com/stretchr/testify":       nil, // tests only
	"go.uber.org/goleak":                nil,
	"pgregory.net/rapid":                nil,
}

func TestLibrariesStayInTheirRooms(t *testing.T) {
	files, _ := tree(t)
	for _, f := range files {
		for _, path := range f.imports() {
			if !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") || strings.HasPrefix(path, module) {
				continue
			}
			lib := ""
			for l := range homes {
				if under(path, l) {
					lib = l
				}
			}
			require.NotEmpty(t, lib, "%s imports %s: a new library needs a measured reason in the changelog and a line here", f.path, path)
			require.True(t, f.test || under(f.room, homes[lib]...), "%s imports %s outside its room", f.path, path)
		}
	}
}

// cores decide: same input, same output. What they may not touch.
var cores = []string{"internal/machine", "internal/founding", "internal/replica"}

var impure = []string{"os", "net", "sync", "sync/atomic", "context", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "io/fs", "syscall"}

func TestCoresHaveNoEffects(t *testing.T) {
	files, _ := tree(t)
	for _, f := range files {
		if f.test || !under(f.room, cores...) {
			continue
		}
		for _, path := range f.imports() {
			require.NotContains(t, impure, path, "%s is a core", f.path)
		}
		ast.Inspect(f.text, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				require.Fail(t, "a core uses goroutines or channels", f.path)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" {
					require.NotContains(t, []string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker"}, n.Sel.Name, "%s reads the clock", f.path)
				}
			}
			return true
		})
	}
}

// long lists what may pass the bar, with the reason.
var long = map[string]string{}

func TestFunctionsFitAScreenAndFilesOneNoun(t *testing.T) {
	files, set := tree(t)
	for _, f := range files {
		if !f.test && long[f.path] == "" {
			require.LessOrEqual(t, f.lines, 500, "%s", f.path)
		}
		for _, d := range f.text.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			n := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1
			if !f.test && long[f.path+" "+fn.Name.Name] == "" {
				require.LessOrEqual(t, n, 70, "%s: %s", f.path, fn.Name.Name)
			}
		}
	}
}

func TestEverythingPublicIsDocumented(t *testing.T) {
	files, _ := tree(t)
	documented := map[string]bool{}
	for _, f := range files {
		if f.test {
			continue
		}
		documented[f.room] = documented[f.room] || f.text.Doc != nil
		for _, d := range f.text.Decls {
			undocumented(d, func(name string) { require.Fail(t, "no doc comment", "%s: %s", f.path, name) })
		}
	}
	for room, ok := range documented {
		require.True(t, ok, "package %s has no comment", room)
	}
}

// undocumented reports exported functions, methods of exported types, types, and
// groups of constants and variables without a comment.
func undocumented(d ast.Decl, report func(name string)) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || ast.IsExported(receiver(d))) {
			report(d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
					report(s.Name.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						report(n.Name)
					}
				}
			}
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// banned calls would harm the host process.
var banned = map[string][]string{
	"os":  {"Exit", "Setenv"},
	"log": {"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "SetOutput"},
}

func TestTheHostIsNeverHarmed(t *testing.T) {
	files, set := tree(t)
	for _, f := range files {
		if f.test || under(f.room, "examples") {
			continue
		}
		ast.Inspect(f.text, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if id, ok := call.Fun.(*ast.Ident); ok && id.Name == "panic" {
				require.Fail(t, "the library never panics the host", "%s", set.Position(call.Pos()))
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(banned[x.Name], sel.Sel.Name) {
					require.Fail(t, "the library never does that to its host", "%s: %s.%s", set.Position(call.Pos()), x.Name, sel.Sel.Name)
				}
			}
			return true
		})
	}
}

// realTime lists the tests that must wait on a real clock, with the reason.
var realTime = map[string]string{
	"node/process_test.go": "processes of their own are killed and stopped for real",
}

func TestTestsDoNotSleepOnRealTime(t *testing.T) {
	files, set := tree(t)
	for _, f := range files {
		if !f.test || slices.Contains(f.imports(), "testing/synctest") || realTime[f.path] != "" {
			continue
		}
		ast.Inspect(f.text, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					require.Fail(t, "a sleep on real time is a flake or a delay", "%s", set.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

func TestNothingIsLeftForLater(t *testing.T) {
	files, set := tree(t)
	words := []string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "not impl" + "emented"}
	for _, f := range files {
		for _, group := range f.text.Comments {
			for _, w := range words {
				require.NotContains(t, group.Text(), w, "%s", set.Position(token.Pos(group.Pos())))
			}
		}
	}
}
