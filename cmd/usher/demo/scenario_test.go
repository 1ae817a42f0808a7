package demo

import (
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a scenario", func() {
	It("is parsed from its file", func() {
		s, errs := parseScenario([]byte(`title: x
steps:
- at: 0s
  say: Hello.
  load: web 50/s
- {at: 5s, break: web-2 reset=30%}
- {at: 5s, expect: web failed >= 3, by: 1m}
- {at: 1m, expect: default/web-2 state = quarantined}
- {at: 1h, repair: all}
`))
		Expect(errs).To(BeEmpty())
		Expect(s.steps).To(HaveLen(5))
		Expect(s.steps[0].load).To(Equal(load{"web", 50}))
		Expect(s.steps[1].breaks.How).To(Equal("reset=30%"))
		Expect(s.steps[2].expect).To(Equal(expectation{service: "web", what: "failed", op: ">=", count: 3}))
		Expect(s.steps[3].expect).To(Equal(expectation{service: "web", server: "web-2", what: "state", op: "=", state: "quarantined"}))
	})

	It("prints lines that end between words, not within a flag", func() {
		Expect(wrap("see --take-over and --drain-timeout", 16)).To(Equal("see --take-over\nand\n--drain-timeout"))
	})

	DescribeTable("is rejected",
		func(says, text string) {
			if !strings.Contains(text, "steps") {
				text = "{title: x, steps: [" + text + "]}"
			}
			_, errs := parseScenario([]byte(text))
			Expect(errors.Join(errs...)).To(MatchError(ContainSubstring(says)))
		},
		Entry("if it is not YAML", "line 1", "steps: ["),
		Entry("if it is plain text", "it must be an object, not a string", "no steps, only words"),
		Entry("with a string as a step", "steps: must be an object, not a string", "title: x\nsteps: [say]"),
		Entry("if it has two YAML documents", "2 YAML documents", "title: x\nsteps: []\n---\nsteps: []"),
		Entry("if it is too large", "65536 are allowed", "steps: "+strings.Repeat(" ", maxScenario)),
		Entry("without a title", `title: invalid value "": must be one line of text`, "steps: []"),
		Entry("without steps", "steps: at least one step is required", "title: x\nsteps: []"),
		Entry("with an unknown field", `unknown field "steps[0].brake"`, "{at: 0s, brake: web-2 slow}"),
		Entry("with a step without a time", `steps[0].at: invalid value "": must be a time from 0s to 1h, such as 5s`, "{say: x}"),
		Entry("with a step that is too late", `steps[0].at: invalid value "61m": must be a time`, "{at: 61m, say: x}"),
		Entry("with steps out of order", "steps[1].at: 1s is before 3s", "{at: 2s, expect: web open = 0, by: 3s}, {at: 1s, say: x}"),
		Entry("with a deadline for a step that expects nothing", "steps[0].by: allowed only with expect", "{at: 2s, say: x, by: 3s}"),
		Entry("with a step without an action", "steps[0].say: a step needs say", "{at: 0s}"),
		Entry("with two actions in one step", "or one of load", "{at: 0s, repair: all, load: web 1/s}"),
		Entry("with terminal control characters", "steps[0].say: control characters are not allowed", `{at: 0s, say: "\e[2J"}`),
		Entry("with an invalid rate", `steps[0].load: invalid rate "50" for web: must be a rate such as 50/s`, "{at: 0s, load: web 50}"),
		Entry("with too much load", "steps[1].load: 1010 requests per second over all Services: must be at most 1000", "{at: 0s, load: web 950/s}, {at: 0s, load: sticky 60/s}"),
		Entry("with load on a server", `steps[0].load: "web-1" is a server: must be a Service, such as web`, "{at: 0s, load: web-1 5/s}"),
		Entry("with an unknown server", `steps[0].break: unknown name "web-9": must be a Service (web, refusing,`, "{at: 0s, break: web-9 slow}"),
		Entry("with an invalid fault", `steps[0].break: how: flaky: invalid value "200%": must be a share`, "{at: 0s, break: web-1 flaky=200%}"),
		Entry("without a fault", "steps[0].break: a fault is required after the name of the server: one of refuse,", "{at: 0s, break: web-1}"),
		Entry("with a Service as the server to repair", `steps[0].repair: "web" is a Service: must be one of its servers, such as web-1`, "{at: 0s, repair: web}"),
		Entry("with an incomplete expectation", `must have the form "web failed >= 3"`, "{at: 0s, expect: web failed}"),
		Entry("with an unknown count", `invalid value "size": must be one of state, accepted,`, "{at: 0s, expect: web size = 3}"),
		Entry("with an unknown count of a server", `invalid value "retries": must be one of state, connected, failed, open`, "{at: 0s, expect: web-1 retries = 3}"),
		Entry("with an unknown operator", `invalid operator "<": must be one of =, >=, <=`, "{at: 0s, expect: web open < 3}"),
		Entry("with an invalid number", `invalid value "x": must be a number`, "{at: 0s, expect: web open = x}"),
		Entry("with an unknown state", `invalid value "fine": must be one of ready, outlier, unresponsive, quarantined`, "{at: 0s, expect: web-1 state = fine}"),
		Entry("with an operator that states do not have", `operator ">=" is not allowed for a state`, "{at: 0s, expect: web state >= ok}"),
	)
})
