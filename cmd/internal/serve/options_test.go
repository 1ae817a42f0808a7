package serve

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/config"
)

func TestEachSettingHasAFlagWithItsDefault(t *testing.T) {
	g := NewWithT(t)
	f := New()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.RegisterProxy(flags)
	f.RegisterServers(flags)
	for i := range config.Settings {
		s := &config.Settings[i]
		g.Expect(flags.Lookup(s.FlagName())).NotTo(BeNil(), s.Name)
	}
	g.Expect(f.Policy).To(Equal(config.DefaultPolicy()))
	g.Expect(f.Policy.CheckFlags()).To(Succeed())
	g.Expect(flags.Parse([]string{"--endpoint-drain-timeout=1m", "--access-log-default=false", "--probe=tcp:80", "--scheduler=lc", "--probe-rise=3"})).To(Succeed())
	want := config.DefaultPolicy()
	want.DrainTimeout, want.AccessLog, want.Scheduler, want.Probe.Rise = time.Minute, false, config.LeastConnections, 3
	want.Probe.Check = config.Check{Kind: config.CheckTCP, Port: 80}
	g.Expect(f.Policy).To(Equal(want))
}
