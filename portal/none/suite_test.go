package none

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestNone(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/none")
}
