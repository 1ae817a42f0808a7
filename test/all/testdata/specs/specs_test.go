package specs

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "specs")
}

var _ = Describe("a suite", func() {
	It("passes", func() {})
	It("fails", func() { Expect(1).To(Equal(2), "the reason") })
	It("is skipped", func() { Skip("no such device") })
	It("is skipped, too", func() { Skip("no such device") })
	PIt("is pending", func() {})
})

func TestPasses(t *testing.T) { t.Log("not shown") }

func TestFails(t *testing.T) { t.Error("shown") }

func TestIsSkipped(t *testing.T) { t.Skip("no such program") }
