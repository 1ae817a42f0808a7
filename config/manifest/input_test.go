package manifest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/manifest"
)

var _ = Describe("standard input", func() {
	const web = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"

	It("is an additional file, whose Services stay", func() {
		dir := GinkgoT().TempDir()
		s, err := manifest.New(manifest.Options{Paths: []string{manifest.Stdin, dir}, Input: strings.NewReader(web)})
		Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		applied := make(chan []config.Service)
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, func(services []config.Service) { applied <- services }) }()
		var services []config.Service
		Eventually(applied).WithTimeout(30 * time.Second).Should(Receive(&services))
		Expect(services).To(HaveLen(1))
		Expect(services[0].Name.String()).To(Equal("default/web"))
		Expect(os.WriteFile(filepath.Join(dir, "cart.yaml"), []byte(strings.ReplaceAll(web, "web", "cart")), 0o644)).To(Succeed())
		Eventually(applied).WithTimeout(30 * time.Second).Should(Receive(&services))
		Expect(services).To(HaveLen(1), "only the changed Service")
		Expect(services[0].Name.String()).To(Equal("default/cart"))
		cancel()
		Eventually(done).WithTimeout(30 * time.Second).Should(Receive(BeNil()))
	})

	It("can be the only input, and is named in errors", func() {
		result, err := manifest.Check(manifest.Options{Paths: []string{manifest.Stdin}, Input: strings.NewReader(web + "---\nkind: Service\n")})
		Expect(err).NotTo(HaveOccurred())
		Expect(result.Files).To(Equal(1))
		Expect(result.Services).To(HaveLen(1))
		Expect(result.Errors).To(HaveExactElements(MatchError(HavePrefix("standard input, document 2"))))
	})
})
