package beside

import (
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestBeside(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "beside")
}

var _ = Describe("specs beside each other", func() {
	It("passes", func() { time.Sleep(time.Second) })
	It("knows of the other process", func() {
		config, _ := GinkgoConfiguration()
		Expect(config.ParallelTotal).To(Equal(2))
	})
	It("runs alone", Label("serial"), func() {
		config, _ := GinkgoConfiguration()
		Expect(config.ParallelTotal).To(Equal(1))
	})
	It("fails", func() { Expect(1).To(Equal(2), "why it failed") })
})
