package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// programs are the binaries with their limits: the maximum number of packages outside Go's standard library, and the
// packages that must not be linked, including those below them. Lower a number when fewer are linked.
var programs = []struct {
	name    string
	ceiling int
	never   map[string]string // why
}{
	{"usher", 286, map[string]string{
		"k8s.io/client-go/kubernetes":    "it links all API groups of Kubernetes; config/kube has a client of those that usher uses",
		"k8s.io/client-go/tools/record":  "it links 45 packages; config/kube writes Events itself",
		"google.golang.org/grpc":         "no part of usher speaks gRPC",
		"gvisor.dev/gvisor":              "a TCP/IP stack is for laptops: kubectl-usher has it",
		"github.com/things-go/go-socks5": "a SOCKS server is for laptops: kubectl-usher has it",
		"github.com/miekg/dns":           "DNS is for laptops: kubectl-usher has it",
		"charm.land/bubbletea":           "a terminal UI is for people: kubectl-usher has it",
		"k8s.io/streaming":               "port-forward is for laptops: kubectl-usher has it",
		"github.com/moby/spdystream":     "port-forward is for laptops: kubectl-usher has it",
		"github.com/gorilla/websocket":   "port-forward is for laptops: kubectl-usher has it",
		module + "/cmd/kubectl-usher":    "it is the other program",
	}},
	{"kubectl-usher", 348, map[string]string{
		"k8s.io/client-go/kubernetes": "it links all API groups of Kubernetes; config/kube has a client of those that usher uses",
		"google.golang.org/grpc":      "no part of usher speaks gRPC",
		module + "/cmd/usher/keeper":  "nothing is kept on a laptop",
		module + "/cmd/usher/demo":    "usher has it",
	}},
}

// sizeCeiling is the maximum size of usher for linux/amd64, in bytes, as built by make build.
const sizeCeiling = 28_000_000

// goHere returns a go command for linux/amd64, at the top of the repository.
func goHere(args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = "../..", GinkgoWriter
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	return cmd
}

var _ = Describe("the programs", func() {
	for _, p := range programs {
		It(p.name+" links a limited number of packages, and no forbidden one", func() {
			out, err := goHere("list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./cmd/"+p.name).Output()
			Expect(err).NotTo(HaveOccurred())
			linked := strings.Fields(string(out))
			Expect(linked).To(ContainElement(module + "/cmd/" + p.name))
			for _, l := range linked {
				for path, why := range p.never {
					Expect(l == path || strings.HasPrefix(l, path+"/")).To(BeFalse(), "%s: %s", l, why)
				}
			}
			Expect(len(linked)).To(BeNumerically("<=", p.ceiling))
		})
	}

	It("include a usher executable of limited size", func() {
		file := filepath.Join(GinkgoT().TempDir(), "usher")
		Expect(goHere("build", "-trimpath", "-ldflags=-s -w", "-o", file, "./cmd/usher").Run()).To(Succeed())
		info, err := os.Stat(file)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeNumerically("<=", sizeCeiling))
	})
})
