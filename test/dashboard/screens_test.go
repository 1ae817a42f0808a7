package dashboard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/chromedp/chromedp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// long returns a name of the maximum length.
func long(n int) string { return fmt.Sprintf("checkout%s-n-%03d", strings.Repeat("-and-on", 7), n) }

// busy makes every number in usher's responses large.
const busy script = `{
	const ask = fetch;
	const more = { active: 98765, queued: 4321, accepted: 123456789, retries: 987654, failed: 987654, connected: 123456789 };
	window.fetch = async (...args) => {
		const res = await ask(...args);
		const text = (await res.text())
			.replace(/"(active|queued|accepted|retries|failed|connected)":(\d+)/g, (_, name, n) => '"' + name + '":' + (+n + more[name]))
			.replace(/"endpoints":{"total":(\d+),"ready":(\d+)/g, (_, total, n) => '"endpoints":{"total":' + (+total + 1300) + ',"ready":' + (+n + 1234));
		return new Response(text, { status: res.status, headers: res.headers });
	};
}`

// cut returns the elements whose contents do not fit: cells (for names only the end counts), figures, and the page.
const cut = `(() => {
	const over = e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 4; // glyphs may be taller than their line
	const cells = [...document.querySelectorAll("table:not(.plain) :is(td, th), .number dd, .figures, .filter")]
		.filter(e => e.getClientRects().length > 0 && !e.closest(".unseen, thead[style]") && getComputedStyle(e.closest("thead") ?? e).clipPath === "none")
		.filter(e => e.querySelector(".name") ? [...e.querySelectorAll(".name > :last-child")].some(n => n.getBoundingClientRect().right > e.getBoundingClientRect().right + 1) : over(e));
	const wide = document.documentElement.scrollWidth > innerWidth ? ["the page, " + document.documentElement.scrollWidth + "px"] : [];
	return wide.concat(cells.map(e => e.className + ": " + e.textContent + " " + [e.scrollWidth, e.clientWidth, e.scrollHeight, e.clientHeight]));
})()`

// shoot writes a screenshot to the folder SCREENSHOTS, if that variable is set.
func (p *page) shoot(name string, args ...any) {
	GinkgoHelper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	shot, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	Expect(err).NotTo(HaveOccurred())
	Expect(os.WriteFile(filepath.Join(dir, fmt.Sprintf(name, args...)+".png"), shot, 0o644)).To(Succeed())
}

var _ = Describe("the screens", func() {
	for _, services := range []int{0, 10, 500} {
		It(fmt.Sprintf("truncate no number with %d Services that have long names", services), func() {
			manifests := []string{"apiVersion: v1\nkind: List\nitems: []\n"}
			for i := range services {
				vip, endpoints := fmt.Sprintf("10.196.100.%d", 100+i), []string{refusing(), answering()}
				if i >= 5 {
					vip, endpoints = fmt.Sprintf("fd00:10:96:1111:2222:3333:%d:5555", 1000+i), nil
				}
				manifests = append(manifests, service(long(i), vip, endpoints...))
			}
			u := run(manifests...)
			views := []string{"#/", "#/connections"}
			if services > 0 {
				views = append(views, "#/service/default/"+long(0))
				for range 4 {
					u.connect(long(0))
				}
			}
			for _, width := range []int64{390, 1280, 1920} {
				for _, colours := range []string{"light", "dark"} {
					for i, view := range views {
						p := open(u.url+view, size{width, 1000}, preferences{"prefers-color-scheme": colours}, busy)
						eventually(func() []string {
							if p.text("#live") != "live" || strings.Contains(strings.Join(p.texts(".empty"), ""), "Reading") {
								return []string{"not there yet"}
							}
							return eval[[]string](p, cut)
						}).Should(BeEmpty(), "%s at %d", view, width)
						p.shoot("%d-services-%d-%s-%d", services, width, colours, i)
						p.close()
					}
				}
			}
		})
	}
})
