package house

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

const module = "github.com/usherproxy/usher"

// floors are the top-level folders with code, the highest first. A package imports from the floors below its own and
// from its own top-level folder, so a new package, such as proxy/new, needs no line here. Folders on the same floor do
// not import each other: code that combines them is on the floor above.
var floors = [][]string{
	{"cmd", "deploy"},
	{"proxy"},
	{"portal", "config", "affinity"},
}

// never are the rules in addition to the floors. In of, imports and but, "a/b" is a package, "a/b/..." is that package
// and those below it, and "..." is all; packages of this module are named by their folder. Packages in but are exempt
// from the rule; imports in save are allowed.
var never = []struct {
	of, imports, but, save []string
	why                    string
}{
	{
		of: []string{"..."}, imports: []string{"cmd/..."}, but: []string{"cmd/...", "test/walk/events"}, // the latter starts the program that it measures
		why: "cmd is flags and wiring; what others need of it belongs on a floor below",
	},
	{
		of: []string{"..."}, imports: []string{"test/..."}, but: []string{"test/..."},
		why: "what only tests need is not part of usher; _test.go files may",
	},
	{
		of: []string{"portal/...", "affinity/...", "proxy/forward/..."}, imports: []string{"..."}, save: []string{"proxy/outcome"},
		why: "it knows nothing of Services, and can be used without the rest of usher",
	},
	{
		of: []string{"proxy/outcome"}, imports: []string{"..."},
		why: "it is words only, which all others share",
	},
	{
		of: []string{"proxy/search"}, imports: []string{"proxy/forward/...", "proxy/frontend/...", "portal/...", "net"}, save: []string{"portal"}, // its constants
		why: "it decides; who asks it has the sockets",
	},
	{
		of: []string{"proxy/proxyproto"}, imports: []string{"proxy/...", "portal/..."},
		why: "it works on bytes; who has the sockets asks it",
	},
	{
		of: []string{"..."}, imports: []string{"github.com/pires/go-proxyproto/..."}, but: []string{"proxy/proxyproto"},
		why: "one place reads and writes headers, in a way that holds up no loop",
	},
	{
		of: []string{"proxy/stream/...", "proxy/datagram/..."}, imports: []string{"proxy", "proxy/stream/...", "proxy/datagram/..."},
		why: "they are given what they need, a front end, and do not know each other",
	},
	{
		of: []string{"portal"}, imports: []string{"portal/...", "github.com/vishvananda/netlink/...", "github.com/google/nftables/...", "golang.org/x/sys/..."},
		why: "it is the words, and what all modes keep books of; what is asked of the kernel is below the modes",
	},
	{
		of:      []string{"portal/kernel", "portal/redirect", "portal/iptables", "portal/nftables", "portal/address", "portal/none", "portal/handover"},
		imports: []string{"portal/iptables", "portal/nftables", "portal/address", "portal/none", "portal/modes"},
		why:     "a mode is told of the others by its options; only the list in portal/modes knows them all",
	},
	{
		of: []string{"portal/kernel"}, imports: []string{"portal/redirect"},
		why: "it is below the modes",
	},
	{
		of: []string{"portal/redirect"}, imports: []string{"github.com/google/nftables/..."},
		why: "how rules are written to the kernel is up to the modes",
	},
	{
		of: []string{"cmd/...", "proxy/..."}, imports: []string{"portal/iptables", "portal/nftables", "portal/address", "portal/redirect"},
		why: "what has to be known of a mode its traits tell",
	},
	{
		of: []string{"config"}, imports: []string{"...", "k8s.io/client-go/..."},
		why: "it is the model, the same whether it comes from files or an API server; where it comes from is in its folders",
	},
	{
		of: []string{"..."}, imports: []string{"k8s.io/client-go/tools/cache/..."},
		but: []string{"config/kube/...", "test/cluster/watchers"}, // the latter stands in for kube-proxy
		why: "one place watches the API server; all others are given the model",
	},
	{
		of: []string{"..."}, imports: []string{"k8s.io/client-go/kubernetes/...", "k8s.io/client-go/informers/..."}, but: []string{"test/cluster/...", "test/deploy"},
		why: "the generated clientset links all API groups of Kubernetes; config/kube has a client of those that usher uses",
	},
	{
		of: []string{"..."}, imports: []string{"k8s.io/kube-proxy/..."}, but: []string{"cmd/usher/daemon/kubeproxy"},
		why: "one place reads kube-proxy's configuration; the daemon is given its own",
	},
	{
		of:      []string{"cmd/usher/daemon/...", "cmd/usher/demo/..."},
		imports: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "os/signal", "cmd/internal/..."},
		why:     "it is given values, and can be had without a command line; flags, signals and tables are the commands'",
	},
	{
		of: []string{"..."}, imports: []string{"cmd/usher/daemon/..."}, but: []string{"cmd/usher", "cmd/kubectl-usher", "cmd/internal/serve", "cmd/usher/daemon/...", "test/walk/events"},
		why: "only commands start a daemon",
	},
	{
		of: []string{"..."}, imports: []string{"cmd/usher/demo/..."}, but: []string{"cmd/usher"},
		why: "only commands show a demo; who runs one is told what it adds",
	},
}

// noName are names that do not describe the purpose of a package.
var noName = []string{"util", "utils", "common", "helper", "helpers", "types"}

// importOf is an import in a file.
type importOf struct {
	file string // "proxy/proxy.go"
	path string // as an import: "net/netip"; of this module: "portal"
}

// broken returns the rule that the import breaks, or "".
func (i importOf) broken() string {
	folder := path.Dir(i.file)
	if strings.HasSuffix(i.file, "_test.go") && matches(i.path, "test/...") {
		return ""
	}
	for _, rule := range never {
		exempt := slices.ContainsFunc(rule.but, func(p string) bool { return matches(folder, p) })
		// A package may import packages of its own folder.
		binds := slices.IndexFunc(rule.of, func(p string) bool {
			return matches(folder, p) && !(strings.HasSuffix(p, "/...") && matches(i.path, p))
		})
		forbids := slices.IndexFunc(rule.imports, func(p string) bool { return matches(i.path, p) && !slices.Contains(rule.save, i.path) })
		if !exempt && binds >= 0 && forbids >= 0 && folder != i.path {
			return fmt.Sprintf("%s imports %s, but %s may not import %s: %s",
				i.file, i.path, rule.of[binds], rule.imports[forbids], rule.why)
		}
	}
	from, to := floorOf(folder), floorOf(i.path)
	if to == 0 || from == 0 || from > to || top(folder) == top(i.path) {
		return ""
	}
	return fmt.Sprintf("%s imports %s, but %s, on floor %d, may not import from %s, on floor %d: a package imports only from the floors below it and from its own folder",
		i.file, i.path, folder, from, top(i.path), to)
}

// floorOf returns the floor of a package of this module, the lowest being 1, or 0 if it is on none: tests, and packages
// of other modules.
func floorOf(p string) int {
	i := slices.IndexFunc(floors, func(folders []string) bool { return slices.Contains(folders, top(p)) })
	if i < 0 {
		return 0
	}
	return len(floors) - i
}

func top(p string) string {
	first, _, _ := strings.Cut(p, "/")
	return first
}

// matches reports whether pattern matches a package or import.
func matches(p, pattern string) bool {
	if pattern == "..." {
		return floorOf(p) > 0 || top(p) == "test"
	}
	if folder, ok := strings.CutSuffix(pattern, "/..."); ok {
		return p == folder || strings.HasPrefix(p, folder+"/")
	}
	return p == pattern
}

// readCode reads all Go files once. It returns every import, and the package names by folder.
var readCode = sync.OnceValues(func() (imports []importOf, packages map[string]string) {
	GinkgoHelper()
	packages = map[string]string{}
	for _, file := range filesNamed(".go") {
		text, err := fs.ReadFile(repository, file)
		Expect(err).NotTo(HaveOccurred())
		tree, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ImportsOnly)
		Expect(err).NotTo(HaveOccurred())
		packages[path.Dir(file)] = strings.TrimSuffix(tree.Name.Name, "_test")
		for _, spec := range tree.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			Expect(err).NotTo(HaveOccurred())
			imports = append(imports, importOf{file, strings.TrimPrefix(p, module+"/")})
		}
	}
	return imports, packages
})

var _ = Describe("the package structure", func() {
	It("has no import that breaks a rule", func() {
		imports, _ := readCode()
		var all []string
		for _, i := range imports {
			if s := i.broken(); s != "" {
				all = append(all, s)
			}
		}
		Expect(all).To(BeEmpty(), strings.Join(all, "\n"))
	})

	It("has a floor for every folder with code", func() {
		_, packages := readCode()
		for folder := range packages {
			if top(folder) != "test" {
				Expect(floorOf(folder)).NotTo(BeZero(), "%s is on no floor: say in floors which packages may import it", folder)
			}
		}
	})

	It("has no package with a meaningless name", func() {
		_, packages := readCode()
		for folder, name := range packages {
			Expect(noName).NotTo(Or(ContainElement(name), ContainElement(path.Base(folder))),
				"package %s in %s: name it after what it does", name, folder)
		}
	})

	It("has no rule about removed packages", func() {
		imports, packages := readCode()
		for _, rule := range never {
			for _, pattern := range slices.Concat(rule.of, rule.but, rule.save) {
				Expect(packages).To(HaveKey(Satisfy(func(p string) bool { return matches(p, pattern) })), pattern)
			}
			for _, pattern := range rule.imports {
				Expect(imports).To(ContainElement(Satisfy(func(i importOf) bool { return matches(i.path, pattern) })), pattern)
			}
		}
	})

	DescribeTable("is checked for an import",
		func(file, imported, says string) {
			Expect(importOf{file, imported}.broken()).To(HavePrefix(says))
			Expect(importOf{file, imported}.broken() == "").To(Equal(says == ""))
		},
		Entry("to a higher floor", "proxy/proxy.go", "cmd/internal/show",
			"proxy/proxy.go imports cmd/internal/show, but ... may not import cmd/...: cmd is flags"),
		Entry("to a higher floor by the model", "config/config.go", "proxy/trace",
			"config/config.go imports proxy/trace, but config may not import ...: it is the model"),
		Entry("to a higher floor by a subfolder of the model", "config/kube/source.go", "proxy/trace",
			"config/kube/source.go imports proxy/trace, but config/kube, on floor 1, may not import from proxy, on floor 2: a package imports only"),
		Entry("to another folder on the same floor", "config/kube/source.go", "portal",
			"config/kube/source.go imports portal, but config/kube, on floor 1, may not import from portal, on floor 1: "),
		Entry("of client-go by the model", "config/config.go", "k8s.io/client-go/rest",
			"config/config.go imports k8s.io/client-go/rest, but config may not import k8s.io/client-go/...: it is the model"),
		Entry("of the model by proxy/forward", "proxy/forward/copy.go", "config",
			"proxy/forward/copy.go imports config, but proxy/forward/... may not import ...: it knows nothing of Services"),
		Entry("of proxy/outcome by proxy/forward, which is allowed", "proxy/forward/copy.go", "proxy/outcome", ""),
		Entry("of the model by proxy/outcome", "proxy/outcome/outcome.go", "config",
			"proxy/outcome/outcome.go imports config, but proxy/outcome may not import ...: it is words only"),
		Entry("of informers by a package other than the source", "cmd/usher/run.go", "k8s.io/client-go/tools/cache",
			"cmd/usher/run.go imports k8s.io/client-go/tools/cache, but ... may not import k8s.io/client-go/tools/cache/...: one place"),
		Entry("of a test package by a file that is not a test", "proxy/proxy.go", "test/lab",
			"proxy/proxy.go imports test/lab, but ... may not import test/...: what only tests need"),
		Entry("of flags by the daemon", "cmd/usher/daemon/daemon.go", "github.com/spf13/pflag",
			"cmd/usher/daemon/daemon.go imports github.com/spf13/pflag, but cmd/usher/daemon/... may not import github.com/spf13/pflag: it is given values"),
		Entry("of the daemon by a package other than a command", "cmd/usher/demo/demo.go", "cmd/usher/daemon",
			"cmd/usher/demo/demo.go imports cmd/usher/daemon, but ... may not import cmd/usher/daemon/...: only commands start"),
		Entry("within the daemon, which is allowed", "cmd/usher/daemon/daemon.go", "cmd/usher/daemon/new", ""),
		Entry("of the daemon by a command, which is allowed", "cmd/usher/run.go", "cmd/usher/daemon", ""),
		Entry("of a test package by a test, which is allowed", "proxy/proxy_test.go", "test/lab", ""),
		Entry("of a mode by package portal", "portal/portal.go", "portal/none",
			"portal/portal.go imports portal/none, but portal may not import portal/...: it is the words"),
		Entry("of one mode by another", "portal/iptables/mode_linux.go", "portal/nftables",
			"portal/iptables/mode_linux.go imports portal/nftables, but portal/iptables may not import portal/nftables: a mode is told"),
		Entry("of a mode by a command", "cmd/usher/run.go", "portal/address",
			"cmd/usher/run.go imports portal/address, but cmd/... may not import portal/address: what has to be known"),
		Entry("of a mode by portal/modes, which is allowed", "portal/modes/modes.go", "portal/address", ""),
		Entry("to a lower floor, which is allowed", "cmd/usher/run.go", "config/kube", ""),
		Entry("by a new package, which is allowed", "proxy/new/new.go", "affinity", ""),
		Entry("within a folder, which is allowed", "portal/new/new.go", "portal", ""),
		Entry("of another module, which is allowed", "portal/kernel/nftables_linux.go", "github.com/google/nftables", ""),
	)
})
