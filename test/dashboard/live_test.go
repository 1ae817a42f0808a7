package dashboard

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the connection to usher", func() {
	It("is reported when it is lost, and when usher is back", func() {
		u := run(service("web", "10.96.0.10", answering()))
		p := open(u.url)
		p.downtime = true
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		u.Interrupt().Wait(20 * time.Second)
		eventually(func() string { return p.text("#live") }).Should(Equal("no connection"))
		Expect(p.text("#notice:not([hidden])")).To(ContainSubstring("Lost the connection to usher"))
		Expect(p.texts(".services tbody th")).To(Equal([]string{"default/web"}), "known Services are still shown")

		u.start()
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		eventually(func() string { return p.text("#notice:not([hidden])") }).Should(ContainSubstring("was restarted"))
		u.connect("web")
		eventually(func() int { return p.count(".connections tbody tr") }).Should(Equal(1), "events arrive again")
	})

	It("repeats the requests for lists if they fail at first", func() {
		u := run(service("web", "10.96.0.10", answering()))
		u.connect("web")
		p := open(u.url, script(`
			const request = window.fetch, failed = new Set();
			window.fetch = (path, ...more) => {
				const list = path.split("?")[0].split("/").pop();
				if (!["services", "connections", "ends"].includes(list) || failed.has(list)) return request(path, ...more);
				failed.add(list);
				return Promise.reject(new DOMException("signal timed out", "TimeoutError"));
			};`))
		eventually(func() []string { return p.texts(".services tbody th") }).Should(Equal([]string{"default/web"}))
		eventually(func() int { return p.count(".connections tbody tr") }).Should(Equal(1))
		p.click(".connections tbody tr a")
		eventually(func() string { return p.text("main") }).Should(ContainSubstring("Both directions ended"), "the meaning of the end code endpoint-closed")
	})

	It("can be paused: the page stops updating, and counts the steps since then", func() {
		u := run(service("web", "10.96.0.10", answering()))
		p := open(u.url)
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		p.press("p")
		eventually(func() string { return p.text("#live") }).Should(Equal("paused"))
		Expect(p.count(`#pause[aria-pressed="true"]`)).To(Equal(1))
		u.connect("web")
		eventually(func() string { return p.text("#notice") }).Should(MatchRegexp(`; 4 steps since then`))
		Expect(p.count(".connections tbody tr")).To(BeZero())
		p.click("#pause")
		eventually(func() int { return p.count(".connections tbody tr") }).Should(Equal(1), "connections made during the pause are shown")
		eventually(func() int { return p.count("#notice:not([hidden])") }).Should(BeZero(), "the notice ends with the pause")
	})
})

var _ = Describe("usher demo", func() {
	It("has endpoints that the page can break and repair", func() {
		u := demo()
		p := open(u.url)
		choose := func(fault string) {
			GinkgoHelper()
			eval[any](p, `(() => {
				const choice = document.querySelector("select[aria-label='Break web-1']");
				choice.value = "`+fault+`";
				choice.dispatchEvent(new Event("change"));
			})()`)
		}
		eventually(func() int { return p.count("select[aria-label='Break web-1']") }).Should(Equal(1))
		choose("refuse")
		eventually(func() int { return p.count("button[aria-label='Repair web-1']:not(:disabled)") }).Should(Equal(1))
		p.click("button[aria-label='Repair web-1']")
		eventually(func() int { return p.count("button[aria-label='Repair web-1']:disabled") }).Should(Equal(1))
	})

	It("is the only command with controls to break endpoints", func() {
		p := open(run(service("web", "10.96.0.10", answering())).url)
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
		Expect(p.count("select[aria-label^=Break]")).To(BeZero())
	})
})
