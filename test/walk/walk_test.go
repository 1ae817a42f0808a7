package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/lab"
)

const root = "../.."

func TestWalk(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "walk")
}

// expectNoFaults measures events until their figures match the ceilings, at most the given number of times.
func expectNoFaults(times int, measure func() map[string]figures) {
	GinkgoHelper()
	var faults []string
	for range times {
		if faults = compare(measure()); len(faults) == 0 {
			return
		}
	}
	Expect(faults).To(BeEmpty(), strings.Join(faults, "\n"))
}

var _ = Describe("the walk of an event", Ordered, func() {
	var m *meter
	BeforeAll(func() {
		lab.Long()
		var err error
		m, err = build(root, GinkgoT().TempDir())
		Expect(err).NotTo(HaveOccurred())
	})

	It("matches its ceilings in the data plane", func() {
		// A connection may be accepted before its first bytes arrive, and then waits for them.
		expectNoFaults(20, func() map[string]figures {
			recordings, err := m.dataEvents()
			Expect(err).NotTo(HaveOccurred())
			Expect(recordings).To(HaveLen(3))
			measured := map[string]figures{}
			for event, r := range recordings {
				measured[event] = r.figures
			}
			return measured
		})
	})

	DescribeTable("matches its ceilings in the control plane,", func(source string) {
		if err := mayControl(); err != nil {
			Skip(err.Error())
		}
		// On a busy machine, late work of the start may be part of an event.
		expectNoFaults(5, func() map[string]figures {
			measured, err := m.controlEvents(source)
			Expect(err).NotTo(HaveOccurred())
			Expect(measured).To(HaveLen(2))
			return measured
		})
	}, Entry("from an API server", "api"), Entry("from a file", "file"))
})

var _ = Describe("ceilings", func() {
	DescribeTable("are compared with figures", func(calls int, faults ...any) {
		highest := ceilings[0].highest
		f := highest
		f[inCalls] = calls
		Expect(compare(map[string]figures{ceilings[0].event: f})).To(HaveExactElements(faults...))
	},
		Entry("that are as high", ceilings[0].highest[inCalls]),
		Entry("that are higher", ceilings[0].highest[inCalls]+1, MatchRegexp(`^TCP connection: \d+ calls, more than \d+$`)),
		Entry("that are 2% lower", ceilings[0].highest[inCalls]*98/100),
		Entry("that are 4% lower", ceilings[0].highest[inCalls]*96/100, MatchRegexp(`^TCP connection: only \d+ calls: lower the ceiling, which is \d+$`)),
	)
})

// declares reports whether the file of the repository declares the function.
func declares(file, name string) bool {
	GinkgoHelper()
	text, err := os.ReadFile(root + "/" + file)
	if err != nil {
		return false
	}
	functions, _, err := declared(file, text)
	Expect(err).NotTo(HaveOccurred())
	for _, f := range functions {
		if f.name == name {
			return true
		}
	}
	return false
}

var _ = Describe("names of functions", func() {
	It("in docs/walk.md exist in the code; make walk updates the page", func() {
		text, err := os.ReadFile(root + "/docs/walk.md")
		Expect(err).NotTo(HaveOccurred())
		calls := regexp.MustCompile(`(?m)^ *(\S+) +(\S+\.go)$`).FindAllStringSubmatch(string(text), -1)
		Expect(len(calls)).To(BeNumerically(">", 100))
		for _, c := range calls {
			Expect(declares(c[2], c[1])).To(BeTrue(), "%s in %s", c[1], c[2])
		}
	})

	It("in the list of polling functions exist in the code", func() {
		for file, names := range polling {
			for _, name := range names {
				Expect(declares(file, name)).To(BeTrue(), "%s in %s", name, file)
			}
		}
	})
})

var _ = Describe("the rewriter", func() {
	It("makes functions and methods record their calls, and keeps line numbers", func() {
		text := "package p // of a test\n\nimport \"fmt\"\n\nfunc (t *T[A, B]) one() { fmt.Print(1) }\n\nfunc two() {\n}\n\nfunc elsewhere()\n"
		rewritten, functions, err := rewrite("p/p.go", []byte(text))
		Expect(err).NotTo(HaveOccurred())
		Expect(string(rewritten)).To(Equal("package p; import walk__ \"github.com/usherproxy/usher/test/walk/recorder\" // of a test\n\nimport \"fmt\"\n\n" +
			"func (t *T[A, B]) one() {defer walk__.Enter(\"p/p.go T.one\")(); fmt.Print(1) }\n\nfunc two() {defer walk__.Enter(\"p/p.go two\")();\n}\n\nfunc elsewhere()\n"))
		Expect(functions).To(HaveLen(2))
	})
})
