package lab

import (
	"slices"

	"github.com/onsi/ginkgo/v2"
)

// Smoke is the label of a spec that runs although it is long: one for each portal.
var Smoke = ginkgo.Label("smoke")

// Long skips a spec that is not for who types `go test ./...` while working: one
// that makes networks, for instance (New), or measures. It runs if it was asked
// for, by -ginkgo.focus, -ginkgo.focus-file or -ginkgo.label-filter: make test asks
// for all by -ginkgo.focus=. and so may anybody.
func Long() {
	ginkgo.GinkgoHelper()
	if !Asked() && !slices.Contains(ginkgo.CurrentSpecReport().Labels(), Smoke[0]) {
		ginkgo.Skip("long: run it with -ginkgo.focus, or all with make test")
	}
}

// Asked reports whether long specs were asked for.
func Asked() bool {
	config, _ := ginkgo.GinkgoConfiguration()
	return asked || config.LabelFilter != "" || len(config.FocusStrings)+len(config.FocusFiles) > 0
}

// Ask asks for them in a suite that only those run who want it.
func Ask() { asked = true }

// asked is set before specs run.
var asked bool
