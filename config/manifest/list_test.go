package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/config/manifest"
)

var _ = Describe("A long List", func() {
	It("is read whole, and its mistakes are told in its order", func() {
		const count = 5000 // several readers share it
		items := make([]string, count)
		for i := range items {
			port := "80"
			if i%1000 == 7 {
				port = `"http"`
			}
			items[i] = fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web-%d"},"spec":{"clusterIP":"10.96.%d.%d","ports":[{"port":%s}]}}`,
				i, 1+i/250, 1+i%250, port)
		}
		items[4008] = `{"apiVersion":"v1","kind":"List","items":[]}`
		file := filepath.Join(GinkgoT().TempDir(), "all.json")
		Expect(os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"List","items":[`+strings.Join(items, ",")+`]}`), 0o600)).To(Succeed())

		r, err := manifest.Check(manifest.Options{Paths: []string{file}})
		Expect(err).NotTo(HaveOccurred())
		Expect(r.Services).To(HaveLen(count - 6))
		Expect(r.Errors).To(HaveLen(6))
		for i, item := range []int{7, 1007, 2007, 3007, 4007, 4008} {
			Expect(r.Errors[i].Error()).To(ContainSubstring("items[%d]", item))
		}
		Expect(r.Errors[5].Error()).To(ContainSubstring("a list may not be in a list"))
	})
})
