package proxy_test

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"

	"github.com/usherproxy/usher/portal"
	"github.com/usherproxy/usher/portal/none"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/trace"
)

// defaults returns the default options, with the portal none and a log that is shown if a spec fails.
func defaults() proxy.Options {
	GinkgoHelper()
	pt, err := none.Mode.New(context.Background(), portal.Options{})
	Expect(err).NotTo(HaveOccurred())
	log := logrus.New()
	log.SetOutput(GinkgoWriter)
	o := proxy.Defaults()
	o.Portal, o.Log, o.Trace = pt, log, trace.NewLog(1000)
	return o
}

// stop stops p and resets its connections at once.
func stop(p *proxy.Proxy) {
	p.Stop()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	p.Drain(over)
}
