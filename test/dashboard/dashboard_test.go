package dashboard

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

func TestDashboard(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "dashboard")
}

var (
	usherBinary string
	browser     context.Context // in which pages are opened
)

var _ = BeforeSuite(func() {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		Skip("chromium is not installed; as root, 'make test' installs it")
	}
	dir, err := os.MkdirTemp("", "usher-dashboard-")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(os.RemoveAll, dir)
	usherBinary = filepath.Join(dir, "usher")
	build(dir, "1", "-race", "./cmd/usher", "./cmd/kubectl-usher")

	var end context.CancelFunc
	browser, end = chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(chromium), chromedp.Headless, chromedp.NoSandbox, chromedp.CombinedOutput(io.Discard), chromedp.WSURLReadTimeout(2*time.Minute),
		// Requests of the browser itself do not leave this machine.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	))
	DeferCleanup(end)
	Expect(chromedp.Do(browser, chromedp.Navigate("about:blank"))).To(Succeed())
})

// build builds programs of the main module into dir.
func build(dir, cgo string, args ...string) {
	GinkgoHelper()
	build := exec.Command("go", append([]string{"build", "-C", "../..", "-o", dir + "/"}, args...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
	out, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
}

// header returns a header of the response at url.
func header(url, name string) string {
	GinkgoHelper()
	res, err := http.Get(url)
	Expect(err).NotTo(HaveOccurred())
	res.Body.Close()
	Expect(res.StatusCode).To(Equal(http.StatusOK), url)
	return res.Header.Get(name)
}
