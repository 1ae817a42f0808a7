package modes

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestModes(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/modes")
}
