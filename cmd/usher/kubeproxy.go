package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/usher/daemon/kubeproxy"
)

// kubeProxyFlags are flags of kube-proxy, for users that start usher with kube-proxy's command
// line. --help does not list them; docs/kubernetes.md does.
type kubeProxyFlags struct {
	cleanup  bool // run the command cleanup instead
	initOnly bool // apply the connection tracking settings, which need a writable /proc/sys, and exit
}

func (f *kubeProxyFlags) register(flags *pflag.FlagSet, server *string) {
	hide := func(name string) { flags.Lookup(name).Hidden = true }
	for _, one := range kubeproxy.Flags {
		short := ""
		if one.Name == "v" {
			short = "v"
		}
		flags.StringP(one.Name, short, "", "kube-proxy flag")
		if one.Bool {
			flags.Lookup(one.Name).NoOptDefVal = "true"
		}
		hide(one.Name)
	}
	flags.StringVar(server, "master", "", "kube-proxy's name for --server")
	flags.BoolVar(&f.cleanup, "cleanup", false, "kube-proxy's name for 'usher cleanup'")
	flags.BoolVar(&f.initOnly, "init-only", false, "Apply the connection tracking settings of kube-proxy's configuration, or its defaults, and exit")
	for _, name := range []string{"master", "cleanup", "init-only"} {
		hide(name)
	}
}

// given returns the kube-proxy flags that are set, and their values.
func (f *kubeProxyFlags) given(flags *pflag.FlagSet) map[string]string {
	out := map[string]string{}
	for _, one := range kubeproxy.Flags {
		if flag := flags.Lookup(one.Name); flag.Changed {
			out[one.Name] = flag.Value.String()
		}
	}
	return out
}

// readKubeProxyConfig applies a KubeProxyConfiguration, from a file and from kube-proxy's
// flags, to the flags that are not set. It returns warnings about settings without effect.
func (r *runCommand) readKubeProxyConfig(flags *pflag.FlagSet, given map[string]string) (warnings []string, err error) {
	s, warnings, err := kubeproxy.Read(r.config, given)
	switch {
	case err != nil && r.config == "":
		return nil, cli.Usage(err)
	case err != nil:
		return nil, fmt.Errorf("--config: %w", err)
	}
	r.Cluster.AcceptContentTypes, r.Cluster.ContentType = s.AcceptContentTypes, s.ContentType
	r.Cluster.QPS, r.Cluster.Burst = s.QPS, s.Burst
	r.Resync = s.Resync
	r.NodeIP = s.NodeIP
	if s.Conntrack != nil {
		r.Conntrack = *s.Conntrack
	}
	r.Portal.PodInterfaces = s.PodInterfaces
	for flag, value := range s.Flags {
		if flags.Changed(flag) {
			continue
		}
		if err := flags.Set(flag, value); err != nil {
			return nil, fmt.Errorf("kube-proxy's configuration: --%s: %w", flag, err)
		}
	}
	return warnings, nil
}

// configCheckInterval is the interval at which kube-proxy's configuration file is checked
// for changes.
const configCheckInterval = 10 * time.Second

// watchConfig logs each change of the file, with the fields that differ from before, the contents
// at startup. It returns when ctx ends. kube-proxy would exit on a change.
func watchConfig(ctx context.Context, path string, before []byte, every time.Duration, log logrus.FieldLogger) {
	warned := before
	wait.UntilWithContext(ctx, func(context.Context) {
		now, err := os.ReadFile(path)
		if err != nil || bytes.Equal(now, warned) {
			return // a file that is being replaced may be missing for a moment
		}
		warned = now
		if fields := kubeproxy.Changed(before, now); len(fields) > 0 {
			log.WithField("config", path).Warn(fmt.Sprintf("Configuration file has changed (%s); restart usher to apply the change", strings.Join(fields, ", ")))
		}
	}, every)
}
