package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/kube"
	"github.com/usherproxy/usher/config/manifest"
)

// sourceFlags say where Services come from: from files, or from an API server.
type sourceFlags struct {
	manifests    []string
	serviceCIDRs []string
	cluster      kube.Connection
}

func (f *sourceFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.manifests, "manifests", nil, "`path` of a file or folder with manifests (YAML or JSON): Service, EndpointSlice, Endpoints, List; may be repeated")
	flags.StringSliceVar(&f.serviceCIDRs, "service-cidr", defaultServiceCIDRs, serviceCIDRUsage)
	flags.StringVar(&f.cluster.Kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server")
	flags.StringVar(&f.cluster.Context, "context", "", "context of the kubeconfig; empty means its current one")
	flags.StringVar(&f.cluster.Server, "server", "", "`URL` of the API server, instead of the kubeconfig's or the Pod's")
}

// fromFiles reports whether Services come from files.
func (f *sourceFlags) fromFiles() bool { return len(f.manifests) > 0 }

// check returns an error if the flags name two sources.
func (f *sourceFlags) check() error {
	if f.fromFiles() && (f.cluster.Kubeconfig != "" || f.cluster.Context != "" || f.cluster.Server != "") {
		return usagef("--manifests says that Services come from files; --kubeconfig, --context and --server, from an API server; there is one source")
	}
	return nil
}

// files returns the source for --manifests; o says all but where the files are.
func (f *sourceFlags) files(o manifest.Options) (config.Source, error) {
	cidrs, err := parseCIDRs(f.serviceCIDRs)
	if err != nil {
		return nil, err
	}
	o.Paths, o.ServiceCIDRs = f.manifests, cidrs
	return manifest.New(o)
}

// connect returns a client of the API server.
func (f *sourceFlags) connect() (kubernetes.Interface, *kube.Reach, error) {
	f.cluster.UserAgent = "usher/" + version
	client, reach, err := f.cluster.Connect()
	if err != nil {
		return nil, nil, noSource(err)
	}
	return client, reach, nil
}

// noSource adds to err, for which there is no source, how one is named.
func noSource(err error) error {
	return fmt.Errorf("%w; --manifests takes Services from files, --kubeconfig from a cluster", err)
}

// readTimeout is how long an API server may take to tell all Services.
const readTimeout = 30 * time.Second

// read returns all Services as they are now, with how each is found.
func (f *sourceFlags) read(ctx context.Context, log logrus.FieldLogger) ([]config.Service, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	reach := &kube.Reach{}
	var source config.Source
	var err error
	if f.fromFiles() {
		source, err = f.files(manifest.Options{Discovery: true, Log: log})
	} else {
		var client kubernetes.Interface
		if client, reach, err = f.connect(); err != nil {
			return nil, err
		}
		source, err = kube.New(kube.Options{Client: client, Discovery: true, Log: log})
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var services []config.Service
	complete := false
	err = source.Run(ctx, func(all []config.Service) {
		if !complete {
			services, complete = all, true
		}
		cancel()
	})
	if err == nil && !complete {
		err = fmt.Errorf("the API server did not tell its Services within %s", readTimeout)
		if why := reach.Status().Err; why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
	}
	return services, err
}
