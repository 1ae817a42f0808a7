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

// Several readers share a long file.
var _ = Describe("a long file", func() {
	const count = 5000
	var objects []string
	BeforeEach(func() {
		objects = make([]string, count)
		for i := range objects {
			port := "80"
			if i%1000 == 7 {
				port = `"http"`
			}
			objects[i] = fmt.Sprintf(`{apiVersion: "v1", kind: "Service", metadata: {name: "web-%d"}, spec: {clusterIP: "10.96.%d.%d", ports: [{port: %s}]}}`,
				i, 1+i/250, 1+i%250, port)
		}
	})
	read := func(text string) *manifest.Result {
		GinkgoHelper()
		file := filepath.Join(GinkgoT().TempDir(), "all.yaml")
		Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
		r, err := manifest.Check(manifest.Options{Paths: []string{file}})
		Expect(err).NotTo(HaveOccurred())
		return r
	}

	It("that is one List is read completely, with errors in the order of its items", func() {
		objects[4008] = `{apiVersion: "v1", kind: "List", items: []}`
		r := read("apiVersion: v1\nkind: List\nitems:\n- " + strings.Join(objects, "\n- "))
		Expect(r.Services).To(HaveLen(count - 6))
		Expect(r.Errors).To(HaveLen(6))
		for i, item := range []int{7, 1007, 2007, 3007, 4007, 4008} {
			Expect(r.Errors[i].Error()).To(ContainSubstring("items[%d]", item))
		}
		Expect(r.Errors[5].Error()).To(ContainSubstring("a list must not contain a list"))
	})

	It("of many documents is read completely, with errors in their order", func() {
		objects[4008] = "apiVersion: v1\nkind: Service\n\tmetadata: {}"
		r := read(strings.Join(objects, "\n---\n"))
		Expect(r.Services).To(HaveLen(count - 6))
		Expect(r.Errors).To(HaveLen(6))
		for i, document := range []int{7, 1007, 2007, 3007, 4007} {
			Expect(r.Errors[i].Error()).To(ContainSubstring("web-%d", document))
			Expect(r.Errors[i].Document).To(Equal(document + 1))
		}
		Expect(r.Errors[5].Line).To(Equal(2*4008 + 3))
	})

	It("has one size limit for expanded aliases, which all readers share", func() {
		// Each alias expands the document to about 20 MB. The limit is 32 MiB.
		large := `{apiVersion: v1, kind: Service, metadata: {name: a}, x: &a "` + strings.Repeat("1234567890", 10000) + `", y: [` + strings.Repeat("*a,", 200) + `*a]}`
		const tooLarge = "too large after expanding aliases (*name)"
		objects[0] = large
		Expect(fmt.Sprint(read(strings.Join(objects, "\n---\n")).Errors)).NotTo(ContainSubstring(tooLarge))
		objects[count-1] = large
		Expect(fmt.Sprint(read(strings.Join(objects, "\n---\n")).Errors)).To(ContainSubstring(tooLarge))
	})
})
