package main

import (
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
)

// The test binary acts as go test's -exec, as the program does.
func TestMain(m *testing.M) {
	if os.Getenv(reportsVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestEverySuiteRunsWhateverFailsAndIsInTheTable(t *testing.T) {
	g := NewWithT(t)
	of := func(name string) suite {
		return suite{name: name, dir: "testdata", timeout: "1m", patterns: []string{"./" + name}}
	}
	races := of("races")
	races.race = true
	beside := of("beside")
	beside.beside, beside.label, beside.slots = 2, "!serial", 2
	serial := of("beside")
	serial.name, serial.beside, serial.label = "serial", 1, "serial"
	out := gbytes.NewBuffer()
	g.Expect(run(out,
		stage{of("broken"), of("dies"), races},
		stage{beside, serial, of("missing"), of("specs"), {name: "cross", commands: []string{"env GOOS=no-such-system go vet ./..."}}},
	)).To(BeFalse())
	text := string(out.Contents())
	g.Expect(text).To(And(
		ContainSubstring(`cannot use "not a number"`), ContainSubstring("its last words"), ContainSubstring("the reason"), ContainSubstring("shown"),
		Not(ContainSubstring("not shown"))))
	g.Expect(text).To(MatchRegexp(`(?s)
suite +passed +failed +skipped +seconds +CPU seconds +why skipped
broken +0 +1 +0 +\d+ +\d+ +-
dies +0 +1 +0 +\d+ +\d+ +-
races +1 +1 +0 +\d+ +\d+ +-
beside +2 +1 +0 +\d+ +\d+ +-
serial +1 +0 +0 +\d+ +\d+ +-
missing +0 +1 +0 +\d+ +\d+ +-
specs +2 +2 +4 +\d+ +\d+ +1: no such program; 1: pending; 2: no such device
cross +0 +1 +0 +\d+ +\d+ +-

the slowest specs:
 +1 s  beside: specs beside each other passes
(?: +0 s  [^\n]*
)+
FAILED broken: .*did not compile.*
FAILED dies: .*ended before its tests did.*
FAILED races: [^\n]*
    WARNING: DATA RACE
    .*races_test.go:(18|21).*
FAILED beside: specs beside each other fails \(.*/beside_test.go:26\)
    why it failed
[^F]*
FAILED missing: .*
FAILED specs: .*TestFails
    [^\n]*shown
[^\n]*
FAILED specs: a suite fails \(.*/specs_test.go:17\)
    the reason
[^F]*
FAILED cross: env GOOS=no-such-system [^\n]*
    .*unsupported GOOS.*
[1-9]\d* s of CPU time
6 passed, 8 failed, 4 skipped
$`))
}

func TestAllIsWellIfNothingFails(t *testing.T) {
	g := NewWithT(t)
	out := gbytes.NewBuffer()
	g.Expect(run(out, stage{{name: "load", dir: "../bench/load", timeout: "1m", patterns: []string{"."}}})).To(BeTrue())
	g.Expect(string(out.Contents())).To(MatchRegexp(`\n[1-9]\d* passed, 0 failed, 0 skipped\n$`))
}

func TestNamesLimitTheSuites(t *testing.T) {
	g := NewWithT(t)
	stages := func() []stage { return []stage{{{name: "a"}, {name: "b"}, {name: "c"}}, {{name: "d"}}} }
	all, some := stages(), stages()
	g.Expect(limit(all, nil)).To(Succeed())
	g.Expect(all).To(Equal(stages()))
	g.Expect(limit(some, []string{"d", "a"})).To(Succeed())
	g.Expect(some).To(Equal([]stage{{{name: "a"}}, {{name: "d"}}}))
	g.Expect(limit(stages(), []string{"a", "missing"})).To(MatchError(ContainSubstring(`"missing"`)))
}
