package dashboard

import (
	"fmt"
	"strings"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the page", Ordered, func() {
	var u *usher
	var views []string

	BeforeAll(func() {
		u = run(service("web", "10.96.0.10", refusing(), answering()), service("with-a-rather-long-name-as-some-have-them-in-production", "10.96.0.11", refusing()), service("empty", "10.96.0.12"))
		for range 3 {
			u.connect("web")
		}
		var answer struct{ Items []struct{ ID uint64 } }
		u.ask("connections?state=all&retried=true", &answer)
		Expect(answer.Items).NotTo(BeEmpty())
		views = []string{"#/", "#/connections", fmt.Sprintf("#/connection/%d", answer.Items[0].ID), "#/service/default/web",
			"#/service/default/empty", "#/service/default/with-a-rather-long-name-as-some-have-them-in-production", "#/service/default/nowhere"}
	})

	// each opens every view and waits until it has loaded.
	each := func(check func(p *page, view string), how ...any) {
		GinkgoHelper()
		for _, view := range views {
			p := open(u.url+view, how...)
			p.downtime = strings.HasSuffix(view, "nowhere") // the browser logs the 404
			eventually(func() bool {
				return p.text("#live") == "live" && p.count("h1") == 1 && !strings.Contains(strings.Join(p.texts(".empty"), ""), "Reading")
			}).Should(BeTrue(), view)
			check(p, view)
			p.close() // a browser makes at most 6 connections to a server, and each page keeps one
		}
	}

	It("needs no horizontal scrolling on a phone", func() {
		each(func(p *page, view string) {
			Expect(eval[int](p, "document.documentElement.scrollWidth")).To(BeNumerically("<=", phone.width), view)
		}, phone)
	})

	It("has an accessible name for every control, table, image and region", func() {
		each(func(p *page, view string) {
			tree, err := chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
			Expect(err).NotTo(HaveOccurred())
			used := 0
			for _, node := range tree.Nodes {
				if node.Ignored || node.Role == nil {
					continue
				}
				switch role := strings.Trim(string(node.Role.Value), `"`); role {
				case "button", "link", "searchbox", "textbox", "combobox", "table", "img", "region":
					used++
					Expect(node.Name).NotTo(BeNil(), "%s: %s", view, role)
					Expect(strings.Trim(string(node.Name.Value), `" `)).NotTo(BeEmpty(), "%s: %s", view, role)
				}
			}
			Expect(used).To(BeNumerically(">", 5), view)
		})
	})

	It("has sufficient contrast for every text in both color schemes", func() {
		for _, scheme := range []string{"light", "dark"} {
			each(func(p *page, view string) {
				Expect(eval[[]string](p, faintTexts)).To(BeEmpty(), "%s, %s", view, scheme)
			}, preferences{"prefers-color-scheme": scheme})
		}
	})

	It("lets Tab reach every control", func() {
		each(func(p *page, view string) {
			eval[any](p, `document.body.focus()`)
			Eventually(func() []string { // one round misses elements that were added or redrawn behind the focus
				for range 60 {
					p.press(kb.Tab)
					eval[any](p, `(window.reached ??= new Set()).add(document.activeElement)`)
				}
				return eval[[]string](p, `[...document.querySelectorAll("a, button:not(:disabled), select, input")]
					.filter(e => e.checkVisibility() && e.tabIndex >= 0 && !e.closest("tbody") && !reached.has(e)).map(e => e.textContent)`)
			}).WithTimeout(2*time.Minute).Should(BeEmpty(), view)
		})
	})

	It("lets arrow keys move through the table, and Enter open a row", func() {
		p := open(u.url)
		eventually(func() int { return p.count(".services tbody tr") }).Should(Equal(3))
		eval[any](p, `document.querySelector(".services [tabindex='0']").focus()`)
		p.press(kb.ArrowDown)
		Expect(eval[string](p, "document.activeElement.textContent")).To(Equal("default/web"))
		p.press(kb.End)
		Expect(eval[string](p, "document.activeElement.textContent")).To(HavePrefix("default/with-a-rather"))
		p.press(kb.Home)
		p.press(kb.Enter)
		eventually(func() string { return p.text("h1") }).Should(HavePrefix("empty"))
		Expect(eval[string](p, "document.activeElement.id")).To(Equal("main"), "screen readers start with the new view")
	})

	It("follows the system's color scheme until the user selects another", func() {
		p := open(u.url, preferences{"prefers-color-scheme": "dark"})
		ground := func() string { return eval[string](p, "getComputedStyle(document.body).backgroundColor") }
		Expect(ground()).To(Equal("rgb(17, 20, 24)"))
		p.click("#theme")
		Expect(p.text("#theme")).To(Equal("Colors: light"))
		Expect(ground()).To(Equal("rgb(246, 247, 249)"))
		p.do(chromedp.Reload())
		Expect(ground()).To(Equal("rgb(246, 247, 249)"), "the selection is remembered")
		p.click("#theme")
		p.click("#theme")
		Expect(p.text("#theme")).To(Equal("Colors: auto"))
	})
})

// faintTexts are the texts whose contrast with their background is below WCAG 2.2's level AA: 4.5, or 3 for large texts.
const faintTexts = `(() => {
	const parse = colour => colour.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = el => {
		for (; el; el = el.parentElement) {
			const c = parse(getComputedStyle(el).backgroundColor);
			if (c.length === 3 || c[3] > 0) return c;
		}
		return [255, 255, 255];
	};
	const faint = [];
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const el = walker.currentNode.parentElement, style = getComputedStyle(el);
		if (!walker.currentNode.nodeValue.trim() || el.closest("svg, .unseen, noscript, script, button:disabled") || !el.checkVisibility()) continue;
		const [a, b] = [light(parse(style.color)), light(ground(el))].sort((x, y) => y - x);
		const size = parseFloat(style.fontSize), large = size >= 24 || size >= 18.66 && style.fontWeight >= 700;
		const contrast = (a + 0.05) / (b + 0.05);
		if (contrast < (large ? 3 : 4.5)) faint.push(walker.currentNode.nodeValue.trim() + ": " + contrast.toFixed(2));
	}
	return faint;
})()`
