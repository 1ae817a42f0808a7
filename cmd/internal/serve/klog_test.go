package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/usherproxy/usher/cmd/internal/cli"
)

func TestServe(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "serve")
}

var _ = Describe("client-go's log output", func() {
	// said makes client-go log a message, and returns the resulting output on standard error.
	said := func(log *logrus.Logger) string {
		GinkgoHelper()
		r, w, err := os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(r.Close)
		stderr := os.Stderr
		os.Stderr = w
		LogKlog(log)
		DeferCleanup(klog.ClearLogger)
		klog.Warningf("of several\nlines")
		klog.Background().WithName("reflector").WithValues("type", "*v1.Service").Error(errors.New("no\nway"), "Failed to watch")
		utilruntime.HandleError(errors.New("unhandled"))
		os.Stderr = stderr
		Expect(w.Close()).To(Succeed())
		out, err := io.ReadAll(r)
		Expect(err).NotTo(HaveOccurred())
		return string(out)
	}
	logger := func(level string) (*logrus.Logger, *bytes.Buffer) {
		GinkgoHelper()
		var out bytes.Buffer
		return (&cli.LogFlags{Level: level, Format: "json"}).Logger(&out), &out
	}

	It("goes to usher's log at level debug, in its format", func() {
		log, out := logger("debug")
		Expect(said(log)).To(BeEmpty())
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		Expect(lines).To(HaveLen(3))
		for _, line := range lines {
			var fields map[string]any
			Expect(json.Unmarshal([]byte(line), &fields)).To(Succeed(), line)
			Expect(fields).To(And(HaveKeyWithValue("level", "debug"), HaveKeyWithValue("from", "client-go")))
		}
		Expect(lines[0]).To(ContainSubstring(`"of several lines"`))
		Expect(lines[1]).To(And(ContainSubstring(`"err":"no\nway"`), ContainSubstring(`"type":"*v1.Service"`), ContainSubstring("Failed to watch")))
		Expect(lines[2]).To(ContainSubstring("unhandled"))
	})

	It("is discarded at level info or without a logger", func() {
		log, out := logger("info")
		Expect(said(log)).To(BeEmpty())
		Expect(out.String()).To(BeEmpty())
		Expect(said(nil)).To(BeEmpty())
	})
})
