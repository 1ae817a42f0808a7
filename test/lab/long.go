package lab

import (
	"slices"

	"github.com/onsi/ginkgo/v2"
)

// Smoke is the label of a long spec that always runs: one for each portal.
var Smoke = ginkgo.Label("smoke")

// Long skips a long spec when a developer runs `go test ./...`. Long specs create networks (New), for instance, or
// measure. They run if requested by -ginkgo.focus, -ginkgo.focus-file or -ginkgo.label-filter; make test requests
// all of them by -ginkgo.focus=. and so can any developer. Specs with the label Smoke always run.
func Long() {
	ginkgo.GinkgoHelper()
	if !Asked() && !slices.Contains(ginkgo.CurrentSpecReport().Labels(), Smoke[0]) {
		ginkgo.Skip("long: run it with -ginkgo.focus, or all with make test")
	}
}

// Asked reports whether long specs were requested.
func Asked() bool {
	config, _ := ginkgo.GinkgoConfiguration()
	return asked || config.LabelFilter != "" || len(config.FocusStrings)+len(config.FocusFiles) > 0
}

// Ask requests long specs, for a suite that runs only on demand.
func Ask() { asked = true }

// asked must be set before specs run.
var asked bool
