package krew

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.yaml.in/yaml/v3"
)

func TestKrew(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "krew")
}

var _ = Describe("krew's manifest", func() {
	const version = "v9.8.7"
	var template []byte
	BeforeEach(func() {
		var err error
		template, err = os.ReadFile("../../krew/usher.yaml")
		Expect(err).NotTo(HaveOccurred())
	})

	It("names each archive of a release, with its checksum and the program in it", func() {
		made := GinkgoT().TempDir()
		for _, platform := range []string{"linux_amd64.tar.gz", "linux_arm64.tar.gz", "darwin_amd64.tar.gz", "darwin_arm64.tar.gz", "windows_amd64.zip", "windows_arm64.zip"} {
			Expect(os.WriteFile(filepath.Join(made, "usher_"+version+"_"+platform), []byte(platform), 0o600)).To(Succeed())
		}
		text, err := Manifest(template, version, made)
		Expect(err).NotTo(HaveOccurred())
		var manifest struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string
			Metadata   struct{ Name string }
			Spec       struct {
				Version          string
				ShortDescription string `yaml:"shortDescription"`
				Platforms        []struct {
					Selector struct {
						MatchLabels map[string]string `yaml:"matchLabels"`
					}
					URI, SHA256, Bin string
					Files            []struct{ From, To string }
				}
			}
		}
		Expect(yaml.Unmarshal(text, &manifest)).To(Succeed())
		Expect(manifest.APIVersion + " " + manifest.Kind + " " + manifest.Metadata.Name).To(Equal("krew.googlecontainertools.github.com/v1alpha2 Plugin usher"))
		Expect(manifest.Spec.Version).To(Equal(version))
		Expect(len(manifest.Spec.ShortDescription)).To(BeNumerically("<=", 50), "the limit of krew")
		Expect(manifest.Spec.Platforms).To(HaveLen(6))
		seen := map[string]bool{}
		for _, p := range manifest.Spec.Platforms {
			name := path.Base(p.URI)
			platform := strings.TrimPrefix(name, "usher_"+version+"_")
			Expect(platform).To(HavePrefix(p.Selector.MatchLabels["os"] + "_" + p.Selector.MatchLabels["arch"] + "."))
			Expect(p.SHA256).To(Equal(fmt.Sprintf("%x", sha256.Sum256([]byte(platform)))))
			Expect(p.URI).To(HavePrefix("https://github.com/usherproxy/usher/releases/download/" + version + "/"))
			Expect(p.Files[0].From).To(Equal("*/" + p.Bin))
			seen[name] = true
		}
		Expect(seen).To(HaveLen(6))
		Expect(string(text)).NotTo(Or(ContainSubstring("VERSION"), ContainSubstring("SHA256(")))
	})

	It("is not created for a release that lacks an archive", func() {
		_, err := Manifest(template, version, GinkgoT().TempDir())
		Expect(err).To(MatchError(ContainSubstring("usher_v9.8.7_linux_amd64.tar.gz")))
	})
})
