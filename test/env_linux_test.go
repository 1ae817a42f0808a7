package test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
)

var _ = Describe("kubectl usher env", func() {
	var dir string
	BeforeEach(func() {
		dir = manifestsDir()
		service{name: "my-web", clusterIP: "10.96.0.10", port: 80}.write(dir)
		writeFile(filepath.Join(dir, "names.yaml"), onlyNames)
		writeFile(filepath.Join(dir, "others.yaml"), strings.ReplaceAll(strings.ReplaceAll(
			service{name: "kubernetes", clusterIP: "10.96.0.1", port: 443}.yaml()+"---\n"+service{name: "cart", clusterIP: "10.96.0.12", port: 8080}.yaml(),
			"cart, namespace: default", "cart, namespace: shop"), "main", "https"))
	})
	env := func(args ...string) string {
		GinkgoHelper()
		cmd := exec.Command(kubectlUsher(), append([]string{"env", "--manifests", dir}, args...)...)
		cmd.Stderr = GinkgoWriter
		out, err := cmd.Output()
		Expect(err).NotTo(HaveOccurred())
		return string(out)
	}

	It("sets a Pod's Service variables in a shell", func() {
		out, err := exec.Command("sh", "-euc", fmt.Sprintf(`eval "$(%s env --manifests %s)"; echo $MY_WEB_SERVICE_HOST $MY_WEB_PORT_80_TCP $KUBERNETES_SERVICE_PORT_HTTPS; env | grep -c _SERVICE_HOST=10.96`, kubectlUsher(), dir)).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
		Expect(string(out)).To(Equal("10.96.0.10 tcp://10.96.0.10:80 443\n2\n"))
	})

	It("prints the variables of a namespace, of named Services, and of all Services", func() {
		Expect(env("-n", "shop", "-o", "dotenv")).To(And(ContainSubstring("CART_SERVICE_HOST=10.96.0.12\n"), ContainSubstring("KUBERNETES_SERVICE_HOST="), Not(ContainSubstring("MY_WEB"))))
		Expect(env("shop/cart", "my-web", "-o", "dotenv")).To(And(HavePrefix("CART_SERVICE_HOST=10.96.0.12\n"), ContainSubstring("MY_WEB_"), Not(ContainSubstring("KUBERNETES"))))
		Expect(env("-A", "-o", "json")).To(And(ContainSubstring(`"CART_SERVICE_HOST": "10.96.0.12"`), ContainSubstring(`"MY_WEB_SERVICE_PORT": "80"`)))
	})

	DescribeTable("reports", func(code int, message string, args ...string) {
		session, err := gexec.Start(exec.Command(kubectlUsher(), append([]string{"env", "--manifests", dir}, args...)...), GinkgoWriter, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		Eventually(session).WithTimeout(30 * time.Second).Should(gexec.Exit(code))
		Expect(string(session.Err.Contents())).To(ContainSubstring(message))
		Expect(session.Out.Contents()).To(BeEmpty())
	},
		Entry("an unknown Service", 1, "there is no Service default/nothing", "nothing"),
		Entry("a Service without a cluster IP", 1, "no variables for Service default/db: only Services with a cluster IP have them", "db"),
		Entry("an unknown format", 2, `--output: invalid value "yaml": must be one of shell, dotenv, json`, "-o", "yaml"),
		Entry("-A together with names", 2, "-A selects all Services and cannot be combined with names: cart", "-A", "cart"),
		Entry("manifests together with an API server", 2, "Services come either from files or from an API server", "--context", "kind"),
	)
})
