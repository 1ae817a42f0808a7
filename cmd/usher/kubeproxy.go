package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
	"github.com/usherproxy/usher/portal"
)

// kubeProxyFlags are flags of kube-proxy's, for who starts usher as kube-proxy was
// started. --help does not list them; docs/kubernetes.md does.
type kubeProxyFlags struct {
	cleanup  bool // as the command cleanup
	initOnly bool // make the settings that need more rights, and end
}

func (f *kubeProxyFlags) register(flags *pflag.FlagSet, server *string) {
	hide := func(name string) { flags.Lookup(name).Hidden = true }
	for _, one := range kubeproxy.Flags {
		short := ""
		if one.Name == "v" {
			short = "v"
		}
		flags.StringP(one.Name, short, "", "a flag of kube-proxy's")
		if one.Bool {
			flags.Lookup(one.Name).NoOptDefVal = "true"
		}
		hide(one.Name)
	}
	flags.StringVar(server, "master", "", "kube-proxy's name of --server")
	flags.BoolVar(&f.cleanup, "cleanup", false, "kube-proxy's name of 'usher cleanup'")
	flags.BoolVar(&f.initOnly, "init-only", false, "make the settings of the kernel that kube-proxy's configuration asks for, and end")
	for _, name := range []string{"master", "cleanup", "init-only"} {
		hide(name)
	}
}

// given returns kube-proxy's flags that were given, and their values.
func (f *kubeProxyFlags) given(flags *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	for _, one := range kubeproxy.Flags {
		if flag := flags.Lookup(one.Name); flag.Changed {
			out[one.Name] = flag.Value.String()
		}
	}
	return out
}

// readKubeProxyConfig makes what a KubeProxyConfiguration, in a file and in flags of
// kube-proxy's, says the value of the flags that were not given. It returns warnings about what means nothing here.
func (r *runCommand) readKubeProxyConfig(flags *pflag.FlagSet, given map[string]string) (warnings []string, err error) {
	s, warnings, err := kubeproxy.Read(r.config, given)
	switch {
	case err != nil && r.config == "":
		return nil, &usageError{err}
	case err != nil:
		return nil, fmt.Errorf("--config: %w", err)
	}
	r.Cluster.AcceptContentTypes, r.Cluster.ContentType = s.AcceptContentTypes, s.ContentType
	r.Cluster.QPS, r.Cluster.Burst = s.QPS, s.Burst
	r.Resync = s.Resync
	r.nodeIP = s.NodeIP
	r.Conntrack = daemon.Conntrack(s.Conntrack)
	r.Portal.PodInterfaces = portal.Interfaces(s.PodInterfaces)
	for flag, value := range map[string]string{
		"kubeconfig":             s.Kubeconfig,
		"node-name":              s.NodeName,
		"healthz-address":        said(s.HealthzAddress),
		"admin-address":          said(s.MetricsAddress),
		"bind-address-hard-fail": said(s.BindHardFail),
		"nodeport-addresses":     nodePorts(s.NodePorts),
		"cluster-cidr":           join(s.ClusterCIDRs),
		"proxy-port-range":       portRange(s.ProxyPorts),
		"log-level":              s.LogLevel,
		"log-format":             s.LogFormat,
		"portal":                 s.Portal,
		"portal-check-interval":  said(s.CheckInterval),
		"max-sync-delay":         said(s.MaxDelay),
	} {
		if value == "" || flags.Changed(flag) {
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return nil, fmt.Errorf("kube-proxy's configuration, for --%s: %w", flag, err)
		}
	}
	return warnings, nil
}

// said returns how a flag says v; "" for a zero value, which is that nothing is said.
func said[T comparable](v T) string {
	var nothing T
	if v == nothing {
		return ""
	}
	return fmt.Sprint(v)
}

func portRange(p kubeproxy.PortRange) string {
	if p.First == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

func nodePorts(n kubeproxy.NodePorts) string {
	if n.Primary {
		return primary
	}
	return join(n.Networks)
}

func join(networks []netip.Prefix) string {
	var words []string
	for _, n := range networks {
		words = append(words, n.String())
	}
	return strings.Join(words, ",")
}

// configCheckInterval is how often kube-proxy's configuration file is read to see
// whether it has changed.
const configCheckInterval = 10 * time.Second

// watchConfig tells when the file no longer is what it was before, which kube-proxy
// would end for, until ctx ends.
func watchConfig(ctx context.Context, path string, before []byte, every time.Duration, log logrus.FieldLogger) {
	told := before
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, told) {
			continue // a file that is being replaced may be gone for a moment
		}
		told = now
		if fields := kubeproxy.Changed(before, now); len(fields) > 0 {
			log.WithField("config", path).Warn(fmt.Sprintf("The configuration has changed (%s); usher goes on with what it read when it started: restart it", strings.Join(fields, ", ")))
		}
	}
}
