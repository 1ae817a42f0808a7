package races

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestRaces(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "races")
}

var _ = It("passes, but for a race", func() {
	n, done := 0, make(chan struct{})
	go func() {
		n++
		close(done)
	}()
	n++
	<-done
})
