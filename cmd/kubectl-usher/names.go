package main

import (
	"github.com/spf13/pflag"

	"github.com/usherproxy/usher/cmd/internal/cli"
	"github.com/usherproxy/usher/cmd/kubectl-usher/laptop"
	"github.com/usherproxy/usher/proxy/dns"
)

// nameFlags configure how the names of Services are resolved.
type nameFlags struct {
	options   dns.Options
	address   string
	upstreams []string
}

func (f *nameFlags) registerDomain(flags *pflag.FlagSet) {
	flags.StringVar(&f.options.Domain, "dns-domain", dns.DefaultDomain, "Cluster `domain` of Service names")
}

func (f *nameFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.address, "dns", "", "Listen `address` of a DNS server for Service names (UDP and TCP; port 53, or address:port). Empty = none")
	f.registerDomain(flags)
	flags.StringSliceVar(&f.upstreams, "dns-upstream", nil, "`addresses` of the resolvers for all other names. Empty = those in "+dns.DefaultResolvConf)
}

// server checks the flags. It returns the server for --dns, or nil if that is empty.
func (f *nameFlags) server() (*laptop.Names, error) {
	if _, err := dns.ParseDomain(f.options.Domain); err != nil {
		return nil, cli.Usagef("--dns-domain: %w", err)
	}
	if f.address == "" {
		return nil, nil
	}
	at, err := dns.ParseServer(f.address)
	if err != nil {
		return nil, cli.Usagef("--dns: %w", err)
	}
	for _, u := range f.upstreams {
		server, err := dns.ParseServer(u)
		if err != nil {
			return nil, cli.Usagef("--dns-upstream: %w", err)
		}
		f.options.Upstreams = append(f.options.Upstreams, server)
	}
	return laptop.NewNames(at, f.options, nil)
}
