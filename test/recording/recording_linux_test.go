package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/usherproxy/usher/test/lab"
)

func TestRecording(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "recording")
}

var _ = Describe("the recording", Ordered, func() {
	var usher string
	BeforeAll(func() {
		var err error
		usher, err = gexec.Build("github.com/usherproxy/usher/cmd/usher")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(gexec.CleanupBuildArtifacts)
	})
	read := func(name string) []byte {
		GinkgoHelper()
		text, err := os.ReadFile(filepath.Join("../../docs", name))
		Expect(err).NotTo(HaveOccurred())
		return text
	}
	committed := func() *cast {
		GinkgoHelper()
		c, err := parseCast(read(castFile))
		Expect(err).NotTo(HaveOccurred())
		return c
	}

	It("shows the session in about 30 s, with commands that exist", func() {
		c := committed()
		var typed []string
		for _, command := range session {
			typed = append(typed, command.typed)
		}
		Expect(c.commands()).To(Equal(typed), "make recording updates it")
		Expect(c.header.Width).To(Equal(columns))
		Expect(c.events[len(c.events)-1].at).To(BeNumerically("~", 30*time.Second, 8*time.Second))
		for _, command := range typed {
			words := strings.Fields(strings.TrimSuffix(command, "&"))
			if words[0] != "usher" {
				continue
			}
			help, err := exec.Command(usher, append(words[1:], "--help")...).CombinedOutput() // which looks at the flags
			Expect(err).NotTo(HaveOccurred(), "%s: %s", command, help)
			Expect(string(help)).To(ContainSubstring("Usage:\n  "+strings.Join(words[:2], " ")), command)
		}
	})

	It("has an SVG image generated from it, well-formed and below 300 kB", func() {
		picture := read(svgFile)
		made, err := committed().svg()
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Equal(made, picture)).To(BeTrue(), "make recording updates both")
		Expect(len(picture)).To(BeNumerically("<", 300_000))
		var text strings.Builder
		for tokens := xml.NewDecoder(bytes.NewReader(picture)); ; {
			token, err := tokens.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			Expect(err).NotTo(HaveOccurred())
			if chars, ok := token.(xml.CharData); ok {
				text.Write(chars)
			}
		}
		Expect(text.String()).To(And(ContainSubstring("curl http://10.96.0.11/"), ContainSubstring("connection refused after"), ContainSubstring("connected in")))
	})

	It("can be recorded again", func() {
		lab.Long()
		if os.Geteuid() != 0 {
			Skip("needs root to create a network namespace")
		}
		to := GinkgoT().TempDir()
		Expect(run(usher, to, 5*time.Millisecond)).To(Succeed())
		text, err := os.ReadFile(filepath.Join(to, castFile))
		Expect(err).NotTo(HaveOccurred())
		c, err := parseCast(text)
		Expect(err).NotTo(HaveOccurred())
		again, err := c.marshal()
		Expect(err).NotTo(HaveOccurred())
		Expect(string(again)).To(Equal(string(text)), "parsing it loses nothing")
		Expect(c.commands()).To(Equal(committed().commands()))
	})
})
