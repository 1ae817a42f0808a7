package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/view"
)

var _ = Describe("the command line", func() {
	says := func(args ...string) (code int, out, err string) {
		var stdout, stderr bytes.Buffer
		root := newRoot()
		root.SetOut(&stdout)
		root.SetErr(&stderr)
		code = cli.Execute(context.Background(), root, args)
		return code, stdout.String(), stderr.String()
	}

	DescribeTable("exits with code 2 and a specific error for",
		func(text string, args ...string) {
			code, _, err := says(args...)
			Expect(code).To(Equal(2))
			Expect(err).To(ContainSubstring(text))
		},
		Entry("an unknown command", `unknown command "gte"; did you mean get?`, "gte"),
		Entry("an unknown kind", "did you mean services?", "get", "srvices"),
		Entry("an unknown flag", "unknown flag: --portl; did you mean --portal?", "run", "--portl=x"),
		Entry("an unknown flag value", `--portal: invalid value "iptabels": must be one of auto, iptables, nftables, address, none; did you mean iptables?`, "run", "--portal=iptabels"),
		Entry("an unknown command of the demo", `demo: unknown command "brake"; did you mean break?`, "demo", "brake", "web-1", "refuse"),
		Entry("a value that is not a Boolean", `usher: --once: invalid value "3": must be true or false`, "demo", "--once=3"),
		Entry("a value that is not a number", `usher: --trace-events: invalid value "x": must be a whole number`, "run", "--trace-events=x"),
		Entry("a number out of range", `usher: --trace-events: invalid value "99999999999999999999": out of range`, "run", "--trace-events=99999999999999999999"),
		Entry("a value that is not a duration", `usher: --dial-timeouts: invalid value "abc": must be a duration such as 250ms`, "run", "--dial-timeouts=1s,abc"),
		Entry("a duration without a unit", `usher: --slow-threshold: invalid value "5": must be a duration such as 250ms`, "run", "--slow-threshold=5"),
		Entry("a duration that is too long", `usher: --dial-timeouts: invalid value "9999999h": must be at most 2562047h`, "run", "--dial-timeouts=9999999h"),
		Entry("two different ports", "explain: web:http and --port=dns name different ports", "explain", "web:http", "--port=dns"),
		Entry("a filter for steps with --changes", "--client cannot be combined with --changes: it selects steps of connections", "trace", "--changes", "--client=10.0.0.1"),
		Entry("an invalid value in a list", `--outcome: invalid value "fialed": must be one of`, "trace", "--outcome=ok,fialed"),
		Entry("an invalid address", `--admin-address: invalid value "99999": must be HOST:PORT with a port from 0 to 65535`, "run", "--manifests=/tmp", "--admin-address=99999"),
		Entry("an invalid domain", `--dns-domain: invalid value "a..b": must be a domain, such as cluster.local`, "diagnose", "--dns-domain=a..b"),
		Entry("a command of kubectl-usher", "exec is a command of kubectl-usher: run 'kubectl-usher exec -n shop -- curl http://web/'", "exec", "-n", "shop", "--", "curl", "http://web/"),
		Entry("a command of kubectl-usher that queries this machine", "top is a command of kubectl-usher: run 'kubectl-usher top web --local'", "top", "web"),
		Entry("a command of kubectl-usher that queries a node", "top is a command of kubectl-usher: run 'kubectl-usher top --node=a'", "top", "--node=a"),
		Entry("a flag of kubectl-usher", "--socks is a flag of kubectl-usher: run 'kubectl-usher connect'", "run", "--socks=:1080"),
		Entry("a flag of kubectl-usher for a cluster", "--node is a flag of kubectl-usher: run 'kubectl-usher get services'", "get", "services", "--node=a"),
		Entry("--keeper with manifests from standard input", "--keeper cannot be combined with --manifests=-", "run", "--manifests=-", "--keeper"),
	)

	DescribeTable("accepts the output of -o name as arguments of get",
		func(typed, is string) {
			Expect(view.KindAndName(newRoot(), strings.Fields(typed))).To(Equal(strings.Fields(is)))
		},
		Entry("one name", "get service/web -o wide", "get service web -o wide"),
		Entry("several names, with any alias of the kind", "get svc/web services/shop/cart echo", "get svc web shop/cart echo"),
		Entry("an endpoint", "get endpoint/[fd00::1]:80", "get endpoint [fd00::1]:80"),
		Entry("connections", "get connection/42 connection/43", "get connection 42 43"),
		Entry("a namespace with the name of a kind", "get services service/web", "get services service/web"),
	)

	It("reports that valid manifests contain nothing to serve", func() {
		file := filepath.Join(GinkgoT().TempDir(), "empty.yaml")
		Expect(os.WriteFile(file, nil, 0o600)).To(Succeed())
		for _, path := range []string{file, filepath.Dir(file)} {
			code, out, _ := says("check", path)
			Expect(code).To(BeZero())
			Expect(out).To(HaveSuffix("0 warnings\nFound nothing to serve.\n"))
		}
		headless := "apiVersion: v1\nkind: Service\nmetadata: {name: db}\nspec: {clusterIP: None, ports: [{port: 5432}]}\n"
		Expect(os.WriteFile(file, []byte(headless), 0o600)).To(Succeed())
		_, out, _ := says("check", file)
		Expect(out).To(HavePrefix("1 file, 0 Services with 0 ports, 1 not proxied (headless, ExternalName, or assigned to another proxy), 0 errors, 0 warnings\n"))
	})

	It("refuses a folder without manifests", func() {
		folder := GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(folder, "README.md"), nil, 0o600)).To(Succeed())
		code, _, err := says("check", folder)
		Expect(code).To(Equal(1))
		Expect(err).To(Equal("error: " + folder + ": the directory has no .yaml, .yml or .json file; subdirectories are not read\n"))
	})

	It("accepts each log level of the logger", func() {
		for _, level := range []string{"INFO", "Warning", "warn", "trace", "fatal", "panic"} {
			_, _, _, err := runWith("--manifests=/tmp", "--log-level="+level)
			Expect(err).NotTo(HaveOccurred(), level)
		}
		_, _, _, err := runWith("--log-level=loud")
		Expect(err).To(MatchError(ContainSubstring(`invalid value "loud": must be one of debug, info, warning, error`)))
	})

	It("completes flag values, also the last one of a list", func() {
		_, out, _ := says("__complete", "get", "services", "--state", "d")
		Expect(strings.Split(out, "\n")).To(ContainElements("degraded", "down"))
		_, out, _ = says("__complete", "trace", "--outcome", "ok,f")
		Expect(strings.Split(out, "\n")).To(ContainElement("ok,failed"))
	})

	It("prints its version", func() {
		code, out, _ := says("--version")
		Expect(code).To(BeZero())
		Expect(out).To(HavePrefix("usher " + cli.Version))
	})

	It("prints help in groups of flags, at most 80 columns wide", func() {
		for _, command := range []string{"run", "demo"} {
			_, out, _ := says(command, "--help-all")
			Expect(out).To(ContainSubstring("\nPortal: how clients reach usher:\n"))
			for line := range strings.Lines(out) {
				Expect(len([]rune(line))).To(BeNumerically("<=", cli.HelpWidth+1), line)
			}
		}
		_, out, _ := says("run", "--help-all")
		Expect(strings.Count(out, "\nGlobal flags:\n")).To(Equal(1))
		Expect(strings.Split(out[strings.Index(out, "\nGlobal flags:\n"):], "\n")).To(HaveLen(7), "only --help and --help-all")
	})

	DescribeTable("prints the flags that most users need with --help, and all with --help-all", func(command string, most int) {
		code, all, _ := says(command, "--help-all")
		Expect(code).To(BeZero())
		_, main, _ := says(command, "--help")
		flags := func(text string) int { return len(regexp.MustCompile(`(?m)^  (-\w, )?--`).FindAllString(text, -1)) }
		Expect(flags(main)).To(Equal(most + 2)) // --help, --help-all
		Expect(main).To(ContainSubstring(fmt.Sprintf("\n%d more flags: 'usher %s --help-all'\n", flags(all)-flags(main), command)))
		Expect(all).To(And(ContainSubstring("\n  --probe-rise int"), Not(ContainSubstring("more flags"))))
	}, Entry(nil, "run", 26), Entry(nil, "demo", 5))
})
