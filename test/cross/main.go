// Command cross type-checks this module, including tests, for other operating systems and architectures.
// It takes seconds, since it reads only the declarations of libraries. `make cross` compiles and links.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	top, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	failed := false
	for _, platform := range os.Args[1:] {
		system, arch, _ := strings.Cut(platform, "/")
		problems, err := check(top, "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
		if err != nil {
			problems = []string{err.Error()}
		}
		for _, problem := range problems {
			failed = true
			fmt.Println(platform+":", problem)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the compile errors of the module at top.
func check(top string, env ...string) (problems []string, err error) {
	all, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedTypesSizes,
		Dir:   top,
		Env:   append(os.Environ(), env...),
		Tests: true,
		ParseFile: func(fset *token.FileSet, name string, src []byte) (*ast.File, error) {
			f, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
			if f != nil && !strings.HasPrefix(name, top+string(filepath.Separator)) {
				withoutBodies(f)
			}
			return f, err
		},
	}, "./...")
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if strings.HasSuffix(p.PkgPath, ".test") {
			continue // the main package of tests, which go test generates
		}
		for _, e := range p.Errors {
			problems = append(problems, e.Error())
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no packages", top)
	}
	return problems, nil
}

// withoutBodies removes the bodies of functions, except those that must have one.
func withoutBodies(f *ast.File) {
	for _, d := range f.Decls {
		if d, is := d.(*ast.FuncDecl); is && d.Type.TypeParams == nil && d.Name.Name != "init" && d.Name.Name != "main" {
			d.Body = nil
		}
	}
}
