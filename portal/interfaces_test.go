package portal_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/portal"
)

var _ = Describe("Interfaces", func() {
	It("match one name, or all names with a prefix", func() {
		Expect(portal.Interfaces("cni0").Has("cni0")).To(BeTrue())
		Expect(portal.Interfaces("cni0").Has("cni01")).To(BeFalse())
		Expect(portal.Interfaces("cali+").Has("cali12ab")).To(BeTrue())
		Expect(portal.Interfaces("cali+").Has("eth0")).To(BeFalse())
		Expect(portal.Interfaces("").Has("")).To(BeFalse())
	})
})
