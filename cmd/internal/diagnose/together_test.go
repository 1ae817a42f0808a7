package diagnose

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = DescribeTable("findings of several nodes that differ only in counts and severity are one", func(check, wrong string, on ...string) {
	var all []OnNode
	for i, text := range on {
		severity := []Severity{Warning, Failing, Warning}[i]
		all = append(all, OnNode{Node: "n", Result: Result{Findings: []Found{{Finding: Finding{Check: check, Severity: severity, Object: "Service default/web", Wrong: text}}}}})
	}
	Expect(Together(all).Findings).To(ConsistOf(And(HaveField("Wrong", wrong), HaveField("Severity", Failing), HaveField("Nodes", HaveLen(len(on))))))
},
	Entry(nil, "quarantine", "10.0.0.1:80 is in quarantine: up to 12 probes failed: HTTP status 503",
		"10.0.0.1:80 is in quarantine: 7 probes failed: HTTP status 503", "10.0.0.1:80 is in quarantine: 12 probes failed: HTTP status 503", "10.0.0.1:80 is in quarantine: 7 probes failed: HTTP status 503"),
	Entry(nil, "past", "up to 2 connections failed: no-answer, endpoint default/web-1", "1 connection failed: no-answer, endpoint default/web-1", "2 connections failed: no-answer, endpoint default/web-1", "1 connection failed: no-answer, endpoint default/web-1"),
	Entry(nil, "usher", "up to 950 of 1000 connections are in use", "950 of 1000 connections are in use", "910 of 1000 connections are in use"),
	Entry(nil, "served", "the same", "the same", "the same"),
)

var _ = DescribeTable("findings of several nodes about different objects stay separate", func(a, b string) {
	finding := func(wrong string) []Found { return []Found{{Finding: Finding{Check: "x", Wrong: wrong}}} }
	Expect(Together([]OnNode{{"a", Result{Findings: finding(a)}}, {"b", Result{Findings: finding(b)}}}).Findings).To(HaveLen(2))
},
	Entry(nil, "10.0.0.1:80 is slow", "10.0.0.2:80 is slow"),
	Entry(nil, "10.0.0.1:80 (web-1) is slow", "10.0.0.1:80 (web-2) is slow"),
	Entry(nil, "port 10.96.0.1:80/TCP is not served: off", "port 10.96.0.1:81/TCP is not served: off"),
)

var _ = It("a finding of a Service that refuses clients precedes findings of some clients, and a note", func() {
	finding := func(s Severity, name string, failures int64) Found {
		return Found{Finding: Finding{Severity: s, Object: "Service default/" + name, Wrong: name}, Failures: failures}
	}
	found := Result{Findings: []Found{finding(Note, "a", 99), finding(Failing, "b", 2), finding(Warning, "c", 30), finding(Failing, "d", 0)}}
	found.sort()
	var order string
	for _, f := range found.Findings {
		order += f.Wrong
	}
	Expect(order).To(Equal("dcba"))
})
