package config

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestReportsOfUnservedObjectsReplaceOthers(t *testing.T) {
	g := NewWithT(t)
	var r Reports
	set := func(by string, served bool) { r.Set(by, time.Now(), []Report{{Object: by, Served: served}}) }
	objects := func() (list []string) {
		for _, report := range r.All() {
			list = append(list, report.Object)
		}
		return list
	}
	for i := range maxReporters {
		set(fmt.Sprint("served ", i), true)
	}
	set("one served more", true)
	g.Expect(objects()).To(And(HaveLen(maxReporters), Not(ContainElement("one served more"))))
	set("not served", false)
	g.Expect(objects()).To(And(HaveLen(maxReporters), ContainElement("not served")))
	for i := range maxReporters - 1 {
		set(fmt.Sprint("not served ", i), false)
	}
	set("one not served more", false)
	g.Expect(objects()).To(And(HaveLen(maxReporters), ContainElement("not served"), Not(ContainElement("one not served more"))))
}
