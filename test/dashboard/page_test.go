package dashboard

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	browserpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// page is the dashboard in a dedicated tab. close, or the end of the test, closes the tab. The test then fails if the
// page has logged an error to the console or sent a request to a host other than its usher.
type page struct {
	ctx    context.Context
	close  func()
	origin string

	mu       sync.Mutex
	errors   []string // logged to the console by the page
	requests []string

	// downtime is set if usher stops in this test: the browser logs unanswered requests.
	downtime bool
}

// size is the size of a screen, in px.
type size struct{ width, height int64 }

var (
	desktop = size{1280, 800}
	phone   = size{375, 667}
)

// script runs before the page's scripts.
type script string

// preferences are the user preferences that the system reports to the browser.
type preferences map[string]string

// open opens the dashboard at url. The default is a desktop without preferences; how overrides it.
func open(url string, how ...any) *page {
	GinkgoHelper()
	ctx, closeTab := chromedp.NewContext(browser)
	p := &page{ctx: ctx, origin: url[:strings.Index(url+"#", "#")]}
	p.close = sync.OnceFunc(func() {
		closeTab()
		p.judge()
	})
	DeferCleanup(func() { p.close() })
	screen, media, first := desktop, []*emulation.MediaFeature(nil), script("")
	for _, h := range how {
		switch h := h.(type) {
		case size:
			screen = h
		case script:
			first = h
		case preferences:
			for name, value := range h {
				media = append(media, &emulation.MediaFeature{Name: name, Value: value})
			}
		}
	}
	// The tab lives as long as the context of its first command.
	Expect(chromedp.Do(ctx, chromedp.EmulateViewport(screen.width, screen.height))).To(Succeed())
	p.listen()
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: media})
	Expect(err).NotTo(HaveOccurred())
	_, err = chromedp.Call(ctx, browserpage.AddScriptToEvaluateOnNewDocument, browserpage.AddScriptToEvaluateOnNewDocumentParams{Source: string(first)})
	Expect(err).NotTo(HaveOccurred())
	p.do(chromedp.Navigate(url))
	return p
}

// judge checks the page's errors and requests.
func (p *page) judge() {
	GinkgoHelper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		Expect(r).To(HavePrefix(p.origin), "no request leaves the origin")
	}
	if !p.downtime {
		Expect(p.errors).To(BeEmpty(), "errors in the console")
	}
}

// listen records the page's errors and requests.
func (p *page) listen() {
	GinkgoHelper()
	_, err := chromedp.Call(p.ctx, network.Enable, network.EnableParams{})
	Expect(err).NotTo(HaveOccurred())
	console, requests := chromedp.Console(p.ctx), chromedp.Events(p.ctx, network.RequestWillBeSent)
	go func() {
		for m, err := range console {
			if err != nil {
				return // the tab is closed
			}
			if m.IsException() || m.Type == "error" || m.Type == "warning" {
				p.mu.Lock()
				p.errors = append(p.errors, m.String()+" "+m.URL)
				p.mu.Unlock()
			}
		}
	}()
	go func() {
		for e, err := range requests {
			if err != nil {
				return
			}
			p.mu.Lock()
			p.requests = append(p.requests, e.Request.URL)
			p.mu.Unlock()
		}
	}()
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(p.ctx, 30*time.Second)
	defer cancel()
	Expect(chromedp.Do(ctx, steps...)).To(Succeed())
}

// eval returns the value of a JavaScript expression. It awaits a promise. If another document replaces this one
// meanwhile, the expression is evaluated again, there.
func eval[T any](p *page, expression string) T {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Minute)
	defer cancel()
	for {
		value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		if err != nil && strings.Contains(err.Error(), "Inspected target navigated") {
			continue
		}
		Expect(err).NotTo(HaveOccurred(), expression)
		return value
	}
}

// texts returns the texts of all elements that match a selector.
func (p *page) texts(selector string) []string {
	GinkgoHelper()
	return eval[[]string](p, fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.textContent.trim())`, selector))
}

// text returns the text of the first match, or "".
func (p *page) text(selector string) string {
	GinkgoHelper()
	texts := p.texts(selector)
	if len(texts) == 0 {
		return ""
	}
	return texts[0]
}

// count returns the number of elements that match a selector.
func (p *page) count(selector string) int {
	GinkgoHelper()
	return eval[int](p, fmt.Sprintf(`document.querySelectorAll(%q).length`, selector))
}

// click clicks on the first element that matches a selector, as a mouse does, and retries if the element has just moved
// away.
func (p *page) click(selector string) {
	GinkgoHelper()
	eventually(func() bool {
		eval[any](p, fmt.Sprintf(`(() => {
			window.hit = false;
			addEventListener("click", e => { window.hit = e.target.closest(%q) !== null }, { once: true, capture: true });
		})()`, selector))
		p.clickOnce(selector)
		return eval[bool](p, "window.hit")
	}).Should(BeTrue(), selector)
}

// clickOnce clicks without retry, for elements that lead to another document or open an element which takes the click.
func (p *page) clickOnce(selector string) {
	GinkgoHelper()
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// press presses keys.
func (p *page) press(keys string) {
	GinkgoHelper()
	p.do(chromedp.KeyEvent(keys))
}

// eventually returns an assertion that polls get.
func eventually(get any) AsyncAssertion {
	return Eventually(get).WithTimeout(time.Minute).WithPolling(50 * time.Millisecond)
}
