package lab

import (
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
)

// tryInput matches what the test of the host's firewall adds for a moment. While its device is being removed, ip(8)
// prints a number in place of its name.
const tryInput = `usher-try|\b192\.0\.0\.12\d\b|\bfd75:7368:6572::12\d\b`

// Settled returns the rules, routes and addresses that state returns. At its start usher makes a connection through a
// temporary interface to check whether a firewall blocks it; Settled waits until that has closed.
func Settled(state func() string) (text string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() string {
		text = state()
		return text
	}).WithTimeout(30 * time.Second).ShouldNot(gomega.MatchRegexp(tryInput))
	return text
}
