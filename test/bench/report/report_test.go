package report_test

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/usherproxy/usher/test/bench/report"
)

func TestReport(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "report")
}

// crr returns rates of new connections, one round for each.
func crr(peer string, rates ...float64) (all report.Results) {
	for i, rate := range rates {
		all = append(all, report.Result{Figure: "crr", Peer: peer, Round: i + 1, Values: report.Values{report.Rate: rate}})
	}
	return all
}

var _ = Describe("a ratio", func() {
	It("is the median of the ratios of the rounds, not the ratio of medians", func() {
		r := append(crr("usher-none", 100, 400, 900), crr("haproxy", 100, 200, 1000)...)
		Expect(r.Ratio("crr", "usher-none", "haproxy", report.Rate)).To(Equal(report.Spread{Median: 1, Min: 0.9, Max: 2, Rounds: 3}))
	})
	It("ignores a round with a result of only one peer", func() {
		r := append(crr("usher-none", 100, 400), crr("haproxy", 100)...)
		Expect(r.Ratio("crr", "usher-none", "haproxy", report.Rate)).To(Equal(report.Spread{Median: 1, Min: 1, Max: 1, Rounds: 1}))
	})
})

var _ = Describe("a file of results", func() {
	It("returns the written results, with only the latest of a repeated measurement", func() {
		var file bytes.Buffer
		Expect(report.WriteMachine(&file, report.Machine{Cores: 2})).To(Succeed())
		failed := report.Result{Figure: "crr", Peer: "nginx", Round: 1, Failed: "connection reset"}
		again := crr("nginx", 5)[0]
		Expect(report.Write(&file, failed)).To(Succeed())
		Expect(report.Write(&file, again)).To(Succeed())
		path := filepath.Join(GinkgoT().TempDir(), "results.jsonl")
		Expect(os.WriteFile(path, file.Bytes(), 0o600)).To(Succeed())

		run, err := report.Read(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(run).To(Equal(report.Run{Machine: report.Machine{Cores: 2}, Results: report.Results{again}}))
	})
	It("causes an error with the line number if it is malformed", func() {
		path := filepath.Join(GinkgoT().TempDir(), "results.jsonl")
		Expect(os.WriteFile(path, []byte("{}\n{"), 0o600)).To(Succeed())
		_, err := report.Read(path)
		Expect(err).To(MatchError(ContainSubstring("results.jsonl, line 2: ")))
	})
})

var _ = Describe("the page", func() {
	results := append(append(crr("haproxy", 10_000, 10_000, 10_000), crr("usher-none", 9_000, 9_500, 12_000)...), crr("usher-address", 10_000, 11_000, 12_000)...)
	page := func(r report.Results) string { return report.Page(report.Run{Results: r}, "benchmarks", nil) }

	It("shows which targets are met and which are not", func() {
		Expect(page(results)).To(ContainSubstring("| new connections a second | ≥ 1.10 × HAProxy | 0.95 **not met** | 1.10 met |\n"))
	})
	It("shows medians, and ratios with minimum and maximum", func() {
		Expect(page(results)).To(ContainSubstring("| usher, no portal | 9500 | 0.95 (0.90–1.20) |\n"))
	})
	It("shows the ceiling, half of direct in each round, and ratios to it", func() {
		page := page(append(results, crr("direct", 20_000, 18_000, 19_000)...))
		Expect(page).To(ContainSubstring("| *the ceiling* | 9500 | 0.95 (0.90–1.00) |  |\n"))
		Expect(page).To(ContainSubstring("| usher, address | 11,000 | 1.10 (1.00–1.20) | 1.22 |\n"))
		Expect(page).To(ContainSubstring("| new connections a second | ≥ 0.95 × *the ceiling* | 1.06 met | 1.22 met |\n"))
	})
	It("compares usher through a netfilter portal with HAProxy behind the same rules", func() {
		page := page(append(append(results, crr("haproxy-nftables", 8_000, 8_000)...), crr("usher-nftables", 7_000, 8_000)...))
		Expect(page).To(ContainSubstring("| HAProxy behind nftables | 8000 |  | 0.80 |\n"))
		Expect(page).To(ContainSubstring("| usher, nftables | 7500 | 0.94 (0.88–1.00) | 0.75 |\n"))
		Expect(page).To(ContainSubstring("| new connections a second | ≥ 0.90 × HAProxy behind the same rules |  |  | 0.94 met |\n"))
	})
	It("lists failed measurements", func() {
		Expect(page(append(results, report.Result{Figure: "idle", Peer: "nginx", Round: 2, Failed: "timed out"}))).
			To(ContainSubstring("- idle, nginx, round 2: `timed out`\n"))
	})
	It("counts a failed figure as not met", func() {
		failed := report.Result{Figure: "rr64", Peer: "usher-none", Round: 1, Failed: "connection reset"}
		Expect(page(append(results, failed))).To(ContainSubstring("| requests a second, 64 connections | ≥ 1.12 × HAProxy | failed, **not met** |  |\n"))
	})
	It("links only plots that exist", func() {
		Expect(report.Plots(results)).To(HaveLen(1))
		Expect(page(results)).To(ContainSubstring("(benchmarks/crr.svg)"))
		Expect(strings.Count(page(results), ".svg)")).To(Equal(1))
	})
})

var _ = Describe("a plot", func() {
	It("is well-formed, with a bar for each peer", func() {
		svg := report.Plots(append(crr("haproxy", 10_000), crr("usher-none", 20_000)...))["crr"]
		Expect(strings.Count(svg, `class="other"`)).To(Equal(1))
		Expect(svg).To(ContainSubstring(`<rect class="other" x="200" y="44" width="180.0"`))
		Expect(svg).To(ContainSubstring(`<rect class="usher" x="200" y="72" width="360.0"`))
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			if _, err := d.Token(); err == io.EOF {
				return
			} else {
				Expect(err).NotTo(HaveOccurred())
			}
		}
	})
})
