package house

import (
	"os"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// notLinked are packages that cmd/usher links neither itself nor through others, with all below them,
// and why.
var notLinked = map[string]string{
	"k8s.io/client-go/kubernetes": "it links all API groups of Kubernetes; config/kube has a client of those that usher uses",
	"google.golang.org/grpc":      "no part of usher speaks gRPC",
}

// linkedCeiling is how many packages outside Go's standard library cmd/usher may link. Lower it when
// fewer are linked.
const linkedCeiling = 416

var _ = It("cmd/usher links no more packages than it needs", func() {
	list := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/usher")
	list.Dir, list.Stderr = "../..", GinkgoWriter
	list.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := list.Output()
	Expect(err).NotTo(HaveOccurred())
	linked := strings.Fields(string(out))
	Expect(linked).To(ContainElement(module + "/cmd/usher"))
	for _, p := range linked {
		for path, why := range notLinked {
			Expect(p == path || strings.HasPrefix(p, path+"/")).To(BeFalse(), "%s: %s", p, why)
		}
	}
	Expect(len(linked)).To(BeNumerically("<=", linkedCeiling))
})
