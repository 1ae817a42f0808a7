package dashboard

import (
	"fmt"
	"net"
	"strings"
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

	It("leaves a paused page as it is if usher is restarted, until the user resumes", func() {
		u := run(service("web", "10.96.0.10", answering()))
		p := open(u.url)
		p.downtime = true
		u.connect("web")
		eventually(func() []int { return []int{p.count(".connections tbody tr"), p.count(".services tbody tr")} }).Should(Equal([]int{1, 1}))
		p.press("p")
		u.Interrupt().Wait(20 * time.Second)
		eventually(func() string { return p.text("#live") }).Should(Equal("no connection"))
		u.start()
		eventually(func() string { return p.text("#live") }).Should(Equal("paused"))
		Consistently(func() []int { return []int{p.count(".connections tbody tr"), p.count(".services tbody tr")} }).
			WithTimeout(3 * time.Second).WithPolling(500 * time.Millisecond).Should(Equal([]int{1, 1}))

		p.click("#pause")
		eventually(func() string { return p.text("#notice:not([hidden])") }).Should(ContainSubstring("was restarted"))
		eventually(func() []int { return []int{p.count(".connections tbody tr"), p.count(".services tbody tr")} }).Should(Equal([]int{0, 1}))
	})

	It("renews the page of a Service when usher is restarted", func() {
		u := run(service("web", "10.96.0.10", refusing(), answering()))
		p := open(u.url + "#/service/default/web")
		p.downtime = true
		changes := func() string { return strings.Join(p.texts(".changes span"), "\n") }
		quarantined := func() {
			GinkgoHelper()
			eventually(func() string { u.connect("web"); return changes() }).Should(ContainSubstring("quarantine"))
		}
		quarantined()
		u.Interrupt().Wait(20 * time.Second)
		eventually(func() string { return p.text("#live") }).Should(Equal("no connection"))
		u.start()
		eventually(func() string { return p.text(`section[aria-labelledby="changes"]`) }).Should(And(HavePrefix("Changes"), Not(ContainSubstring("quarantine"))))
		quarantined()
	})

	It("shows on the page of a Service connections that usher has kept longer than the page", func() {
		u := run(service("web", "10.96.0.10", answering()))
		u.connect("web")
		p := open(u.url+"#/service/default/web", script(`
			const request = window.fetch;
			window.fetch = (path, ...more) => /connections[?].*limit=1000/.test(path) ? Promise.resolve(new Response('{"items": []}')) : request(path, ...more);`))
		eventually(func() int { return p.count(".connections tbody tr") }).Should(Equal(1))
	})

	It("does not show an open connection any more when usher has lost it", func() {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(l.Close) // no client is accepted, so connections stay open
		u := run(service("web", "10.96.0.10", l.Addr().String()))
		var answer struct {
			Ports []struct{ Listener string }
			Items []struct{ ID uint64 }
		}
		u.ask("services/default/web", &answer)
		client, err := net.Dial("tcp", answer.Ports[0].Listener)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(client.Close)
		eventually(func() int { u.ask("connections", &answer); return len(answer.Items) }).Should(Equal(1))
		p := open(u.url + fmt.Sprintf("#/connection/%d", answer.Items[0].ID))
		p.downtime = true
		eventually(func() string { return p.text(".lead") }).Should(ContainSubstring("It is open."))
		u.Kill().Wait(20 * time.Second)
		u.start()
		eventually(func() string { return p.text("main") }).Should(ContainSubstring("no longer has this connection on record"))
	})

	It("starts also with a link that is not escaped correctly", func() {
		u := run(service("web", "10.96.0.10", answering()))
		p := open(u.url + "#/service/default/%")
		p.downtime = true // the browser reports the response 404
		eventually(func() string { return p.text("main") }).Should(ContainSubstring("usher serves no Service of this name"))
		eventually(func() string { return p.text("#live") }).Should(Equal("live"))
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
