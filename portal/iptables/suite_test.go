package iptables

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestIPTables(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "portal/iptables")
}
