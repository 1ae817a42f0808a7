package dashboard

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a connection whose first endpoint refuses", func() {
	var u *usher

	BeforeEach(func() { u = run(service("web", "10.96.0.10", refusing(), answering())) })

	// retry makes connections until one has tried both endpoints. Round robin starts at any endpoint; after the first
	// try the refusing one is in quarantine.
	retry := func() {
		GinkgoHelper()
		var answer struct{ Total int }
		eventually(func() int {
			Expect(u.connect("web")).To(Equal("hello\n"))
			u.ask("connections?state=all&retried=true", &answer)
			return answer.Total
		}).Should(Equal(1))
	}

	It("is shown moving to the next endpoint", func() {
		p := open(u.url)
		eventually(func() []string { return p.texts(".box.endpoint b") }).Should(ConsistOf("web-0", "web-1"))
		eval[any](p, watchDots)
		retry()
		eventually(func() []string { return eval[[]string](p, "[...seen]") }).Should(ContainElements("dot 1 bad", "1 refused web-0", "dot 2", "2 connected web-1"))
		eventually(func() int { return p.count(".dot") }).Should(BeZero(), "the animation has ended")
		eventually(func() string { return p.text(`a[title="default/web"] + .endpoint span`) }).Should(ContainSubstring("quarantined: connection refused"))
	})

	It("is shown without motion if the user prefers reduced motion", func() {
		p := open(u.url, preferences{"prefers-reduced-motion": "reduce"})
		eventually(func() int { return p.count(".box.endpoint") }).Should(Equal(2))
		eval[any](p, watchDots)
		retry()
		eventually(func() []string { return eval[[]string](p, "[...seen]") }).Should(ContainElements("1 refused web-0", "2 connected web-1"))
		Expect(eval[[]string](p, "[...seen]")).NotTo(ContainElement(HavePrefix("dot")))
	})

	It("has a page with every attempt, its duration and its error", func() {
		p := open(u.url)
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		retry()
		eventually(func() int { return p.count(".connections .chip.bad") }).Should(Equal(1))
		eventually(func() string {
			return eval[string](p, `document.querySelector(".chip.bad").closest("tr").querySelector(".chips").textContent`)
		}).Should(Equal("✗refused web-0→✓connected web-1"))
		eval[any](p, `document.querySelector(".chip.bad").closest("a, td").click()`)
		eventually(func() int { return p.count(".waterfall .attempt") }).Should(Equal(2))
		Expect(p.text(`.attempt[data-attempt="1"] .outcome`)).To(MatchRegexp(`^✗ refused after [0-9.]+ ms`))
		Expect(p.text(`.attempt[data-attempt="1"] .outcome`)).To(ContainSubstring("connection refused"))
		Expect(p.text(`.attempt[data-attempt="2"] .outcome`)).To(MatchRegexp(`^✓ connected after [0-9.]+ ms`))
		Expect(p.text(".lead")).To(HavePrefix("One attempt failed; default/web-1 answered"))
		Expect(eval[bool](p, `(() => {
			const [first, second] = [...document.querySelectorAll(".waterfall .bar")].map(b => b.getBoundingClientRect());
			return first.width > 0 && second.width > 0 && second.left >= first.left;
		})()`)).To(BeTrue(), "the bars follow one another")
	})

	It("is found in the list by filter and search", func() {
		retry()
		p := open(u.url + "#/connections")
		eventually(func() int { return p.count("tbody tr") }).Should(BeNumerically(">=", 1))
		p.click(".filter:nth-of-type(3)") // with more than one attempt
		eventually(func() int { return p.count("tbody tr") }).Should(Equal(1))
		p.click("#search")
		p.press("refused")
		Expect(p.count("tbody tr")).To(Equal(1))
		p.press("!")
		eventually(func() string { return p.text(".empty") }).Should(ContainSubstring("No connection matches"))
	})

	It("has a Service page that shows the quarantine", func() {
		p := open(u.url + "#/service/default/web")
		retry()
		eventually(func() string { return p.text(`li .countdown`) }).Should(MatchRegexp(`^[0-9]+ s until it is tried again: connection refused`))
		first := p.text(".countdown b")
		eventually(func() string { return p.text(".countdown b") }).ShouldNot(Equal(first), "it counts down")
		Expect(p.text("h1")).To(Equal("web ~ degraded"))
		Expect(p.text(".lead")).To(HavePrefix("1 of 2 endpoints is ready (1 in quarantine); new connections go to that one. (since "))
		eventually(func() []string { return p.texts(".changes span") }).Should(ContainElement(ContainSubstring("quarantine")))
		Expect(eval[float64](p, `(() => {
			const [edge, box] = [".edge", ".box"].map(s => document.querySelector(s).getBoundingClientRect());
			return Math.abs((edge.top + edge.bottom) / 2 - (box.top + box.bottom) / 2);
		})()`)).To(BeNumerically("<", 2), "lines end at the boxes")
		p.click(".explain button")
		eventually(func() []string { return p.texts(".order li b") }).Should(Equal([]string{"default/web-1", "default/web-0"}))
	})
})

// watchDots collects in seen the states of dots and boxes from now on; each is visible for less than 1 s.
const watchDots = `(() => {
	window.seen = new Set();
	const look = () => {
		for (const dot of document.querySelectorAll(".dot")) seen.add("dot " + dot.dataset.attempt + (dot.classList.contains("bad") ? " bad" : ""));
		for (const box of document.querySelectorAll(".box[data-mark]")) seen.add(box.dataset.mark + " " + box.querySelector("b").textContent);
	};
	new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
})()`
