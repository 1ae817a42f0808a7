package nftables

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestNFTables(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/nftables")
}
