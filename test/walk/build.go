package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/usherproxy/usher/"

// measured lists the folders whose functions count.
var measured = []string{"affinity", "cmd/usher/daemon", "config", "portal", "proxy"}

// function is a declaration with a body.
type function struct {
	name       string // "Proxy.Apply"
	begin, end token.Position
}

// meter is the program that makes events, built from rewritten code.
type meter struct {
	dir       string // temporary; its owner removes it
	program   string
	functions map[string][]function // by file, such as "proxy/proxy.go"
}

// build copies the code at root to dir, rewrites the copy, and builds test/walk/events.
func build(root, dir string) (*meter, error) {
	m := &meter{dir, filepath.Join(dir, "events"), map[string][]function{}}
	tree := filepath.Join(dir, "tree")
	for _, path := range []string{"go.mod", "go.sum", "affinity", "cmd", "config", "portal", "proxy", "test/walk"} {
		err := files(root, path, func(file string, text []byte) error {
			if strings.HasSuffix(file, ".go") && slices.ContainsFunc(measured, func(folder string) bool { return strings.HasPrefix(file, folder+"/") }) {
				rewritten, functions, err := rewrite(file, text)
				if err != nil {
					return err
				}
				text, m.functions[file] = rewritten, functions
			}
			to := filepath.Join(tree, filepath.FromSlash(file))
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o600)
		})
		if err != nil {
			return nil, err
		}
	}
	// The counters start in main: without it in the list there are none.
	packages := module + "test/walk/events"
	for _, folder := range measured {
		packages += "," + module + folder + "/..."
	}
	_, err := m.run(tree, "go", "build", "-covermode=atomic", "-coverpkg="+packages, "-o", m.program, "./test/walk/events")
	return m, err
}

// run runs a command and returns its output.
func (m *meter) run(dir, name string, args ...string) (string, error) {
	c := exec.Command(name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "TMPDIR="+m.dir)
	out, err := c.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return string(out), err
}

// files calls f for each file at path, except tests and files in hidden folders. Paths are relative to root, with
// slashes.
func files(root, path string, f func(file string, text []byte) error) error {
	return fs.WalkDir(os.DirFS(root), path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "testdata" || path == "bin" || path != "." && strings.HasPrefix(entry.Name(), ".")):
			return fs.SkipDir
		case !entry.Type().IsRegular() || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
		if err != nil {
			return err
		}
		return f(path, text)
	})
}

// rewrite makes each function in a file record its calls. The inserted code adds no lines and follows the opening brace
// of a function, so that compiler and coverage positions still match text.
func rewrite(file string, text []byte) (rewritten []byte, functions []function, err error) {
	functions, pkgEnd, err := declared(file, text)
	if err != nil || len(functions) == 0 {
		return text, nil, err
	}
	at := 0
	insert := func(offset int, s string) {
		rewritten = append(append(rewritten, text[at:offset]...), s...)
		at = offset
	}
	insert(pkgEnd, `; import walk__ "`+module+`test/walk/recorder"`)
	for _, f := range functions {
		insert(f.begin.Offset+1, fmt.Sprintf("defer walk__.Enter(%q)();", file+" "+f.name))
	}
	return append(rewritten, text[at:]...), functions, nil
}

// declared returns the functions of a file in order, and the end of its package clause.
func declared(file string, text []byte) (functions []function, pkgEnd int, err error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			functions = append(functions, function{receiver(f) + f.Name.Name, set.Position(f.Body.Lbrace), set.Position(f.End())})
		}
	}
	return functions, set.Position(tree.Name.End()).Offset, nil
}

// receiver returns f's receiver type and a dot.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	t := f.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr: // T[A]
			t = x.X
		case *ast.IndexListExpr: // T[A, B]
			t = x.X
		default:
			return t.(*ast.Ident).Name + "."
		}
	}
}

// functionAt returns the function that contains a position.
func (m *meter) functionAt(file string, line, column int) (string, bool) {
	i := slices.IndexFunc(m.functions[file], func(f function) bool {
		return !before(line, column, f.begin) && before(line, column, f.end)
	})
	if i < 0 {
		return "", false // a function literal in a variable declaration
	}
	return m.functions[file][i].name, true
}

func before(line, column int, p token.Position) bool {
	return line < p.Line || line == p.Line && column < p.Column
}
