package main

import (
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/internal/serve"
	"github.com/usherproxy/usher/cmd/usher/daemon"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/portforward"
)

// The ways to endpoints.
const (
	viaDirect      = "direct"      // as from a node of the cluster
	viaPortForward = "portforward" // through the API server
	viaAuto        = "auto"        // directly, or through the API server to Pods that cannot be reached
)

// vias are all values of --via.
var vias = []string{viaDirect, viaPortForward, viaAuto}

// viaFlag is the value of --via.
type viaFlag string

func (v *viaFlag) register(flags *pflag.FlagSet, byDefault string) {
	*v = viaFlag(byDefault)
	cli.Choice(flags, (*string)(v), "via", "", "How to reach endpoints: "+strings.Join(vias, ", ")+". portforward goes through the API server (TCP only), for machines that cannot reach Pods. auto tries direct first. With --manifests: direct", vias...)
}

// remote reports whether endpoints may be reached through the API server.
func (v viaFlag) remote() bool { return v != viaDirect }

// complete applies the flag to f. Call it before f.Complete.
func (v *viaFlag) complete(f *serve.Flags, flags *pflag.FlagSet) error {
	if f.FromFiles() {
		if v.remote() && flags.Changed("via") {
			return cli.Usagef("--via=%s requires an API server and cannot be combined with --manifests", *v)
		}
		*v = viaDirect
	}
	if !v.remote() {
		return nil
	}
	f.Tunnel = &daemon.Tunnel{Name: string(*v), Open: v.open}
	if !flags.Changed("dial-timeouts") {
		f.Proxy.Schedule = portforward.Schedule
	}
	return nil
}

func (v *viaFlag) open(rest *rest.Config, o *proxy.Options, log logrus.FieldLogger) (func(), error) {
	dialer, err := portforward.New(rest, log)
	if err != nil {
		return nil, err
	}
	o.Dial, o.TCPOnly = dialer.Dial, portforward.ErrTCPOnly
	if *v == viaAuto {
		o.Dial, o.TCPOnly = portforward.Auto(o.DirectDial, dialer.Dial), nil
	}
	return dialer.Close, nil
}
