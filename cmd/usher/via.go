package main

import (
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/portforward"
)

// The values of --via.
const (
	viaDirect      = "direct"
	viaPortForward = "portforward"
	viaAuto        = "auto"
)

var viaModes = []string{viaDirect, viaPortForward, viaAuto}

// viaFlags say how endpoints are reached.
type viaFlags struct {
	via    string
	dialer *portforward.Dialer // nil with direct
}

func (f *viaFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.via, "via", viaDirect, "how endpoints are reached: "+strings.Join(viaModes, ", ")+"; portforward goes through the API server, from where Pods cannot be reached (TCP only); auto tries direct first. With both, --dial-timeouts is 2s,2s,4s if not given, and --node-name is empty")
}

func (f *viaFlags) check() error {
	if !slices.Contains(viaModes, f.via) {
		return usagef("--via: %q is none of %s", f.via, strings.Join(viaModes, ", "))
	}
	return nil
}

// remote reports whether usher may be elsewhere than on a node of the cluster.
func (f *viaFlags) remote() bool { return f.via != viaDirect }

// apply makes a proxy with options reach endpoints as the flags say, through the
// API server of cluster.
func (f *viaFlags) apply(options *proxy.Options, cluster kube.Connection, log logrus.FieldLogger) (err error) {
	if !f.remote() {
		return nil
	}
	config, err := cluster.RESTConfig()
	if err != nil {
		return err
	}
	if f.dialer, err = portforward.New(config, log); err != nil {
		return err
	}
	options.Dial, options.TCPOnly = f.dialer.Dial, portforward.ErrTCPOnly
	if f.via == viaAuto {
		options.Dial, options.TCPOnly = (&portforward.Auto{Direct: options.DirectDial, Else: f.dialer.Dial}).Dial, nil
	}
	return nil
}

// close ends the connections that apply's dialer has made.
func (f *viaFlags) close() {
	if f.dialer != nil {
		f.dialer.Close()
	}
}
