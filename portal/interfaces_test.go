package portal

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("Interfaces", func() {
	It("are one name, or all that begin so", func() {
		Expect(Interfaces("cni0").Has("cni0")).To(BeTrue())
		Expect(Interfaces("cni0").Has("cni01")).To(BeFalse())
		Expect(Interfaces("cali+").Has("cali12ab")).To(BeTrue())
		Expect(Interfaces("cali+").Has("eth0")).To(BeFalse())
		Expect(Interfaces("").Has("")).To(BeFalse())
	})
})
