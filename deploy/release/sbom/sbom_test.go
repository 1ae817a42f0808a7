package sbom

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdxlib"
)

func TestSBOM(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "deploy/release/sbom")
}

var created = time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))

// program is a program that Go has linked with modules.
var program string

var _ = BeforeSuite(func() {
	program = filepath.Join(GinkgoT().TempDir(), "ginkgo")
	out, err := exec.Command("go", "build", "-o", program, "github.com/onsi/ginkgo/v2/ginkgo").CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(out))
})

// written describes the program, applies change to the description, writes it and reads it back.
func written(change func(*spdx.Document)) (string, *spdx.Document) {
	GinkgoHelper()
	doc, err := Program(program, "v1.2.3", created)
	Expect(err).NotTo(HaveOccurred())
	change(doc)
	text, err := JSON(doc)
	Expect(err).NotTo(HaveOccurred())
	read, err := spdxjson.Read(bytes.NewReader(text))
	Expect(err).NotTo(HaveOccurred())
	Expect(spdxlib.ValidateDocument(read)).To(Succeed())
	return string(text), read
}

func asItIs(*spdx.Document)         {}
func withIptables(d *spdx.Document) { Add(d, "deb/debian/", "iptables", "1.8.9+2") }
func inAnImage(d *spdx.Document) {
	Image(d, "example.com/ginkgo", "v1.2.3")
	withIptables(d)
}

var _ = Describe("the bill of materials of a program", func() {
	It("lists the program, Go, each linked module, and added packages", func() {
		_, doc := written(withIptables)
		info, err := buildinfo.ReadFile(program)
		Expect(err).NotTo(HaveOccurred())
		want := []string{"github.com/onsi/ginkgo/v2 v1.2.3", "stdlib " + info.GoVersion[2:]}
		for _, m := range info.Deps {
			want = append(want, m.Path+" "+m.Version)
		}
		Expect(len(want)).To(BeNumerically(">", 5))
		var got, locators []string
		for _, p := range doc.Packages {
			got = append(got, p.PackageName+" "+p.PackageVersion)
			locators = append(locators, p.PackageExternalReferences[0].Locator)
		}
		Expect(got).To(HaveExactElements(append(want, "iptables 1.8.9+2")))
		Expect(locators).To(ContainElements("pkg:golang/stdlib@"+info.GoVersion[2:], "pkg:deb/debian/iptables@1.8.9%2B2"))

		ids, err := spdxlib.GetDescribedPackageIDs(doc)
		Expect(err).NotTo(HaveOccurred())
		Expect(ids).To(HaveExactElements(doc.Packages[0].PackageSPDXIdentifier))
		Expect(doc.Relationships).To(HaveLen(len(doc.Packages)))
	})

	It("lists the contents of an image, and those of the program in it", func() {
		_, doc := written(inAnImage)
		named := map[common.ElementID]*spdx.Package{}
		for _, p := range doc.Packages {
			named[p.PackageSPDXIdentifier] = p
		}
		var got []string
		for _, r := range doc.Relationships {
			from := "document"
			if p := named[r.RefA.ElementRefID]; p != nil {
				from = p.PackageName
			}
			to := named[r.RefB.ElementRefID]
			got = append(got, from+" "+r.Relationship+" "+to.PrimaryPackagePurpose+" "+to.PackageName)
		}
		Expect(got).To(HaveLen(len(doc.Packages)))
		Expect(got).To(ContainElements(
			"document DESCRIBES CONTAINER example.com/ginkgo",
			"example.com/ginkgo CONTAINS APPLICATION github.com/onsi/ginkgo/v2",
			"github.com/onsi/ginkgo/v2 CONTAINS LIBRARY stdlib",
			"example.com/ginkgo CONTAINS LIBRARY iptables"))
	})

	It("has a unique namespace", func() {
		namespaces := map[string]bool{}
		for _, change := range []func(*spdx.Document){asItIs, withIptables, inAnImage} {
			_, doc := written(change)
			Expect(doc.DocumentNamespace).To(MatchRegexp("^https://github.com/onsi/ginkgo/v2/spdx/ginkgo-[0-9a-f]{64}$"))
			namespaces[doc.DocumentNamespace] = true
		}
		Expect(namespaces).To(HaveLen(3))
	})

	It("is the same for the same program", func() {
		one, _ := written(inAnImage)
		two, _ := written(inAnImage)
		Expect(one).To(Equal(two))
		Expect(one).To(ContainSubstring(`"created": "2026-01-02T02:04:05Z"`))
	})

	It("is refused for a file that is not a Go program", func() {
		file := filepath.Join(GinkgoT().TempDir(), "script")
		Expect(os.WriteFile(file, []byte("#!/bin/sh\n"), 0o755)).To(Succeed())
		_, err := Program(file, "v1.2.3", created)
		Expect(err).To(MatchError(ContainSubstring(file + ": ")))
	})
})
