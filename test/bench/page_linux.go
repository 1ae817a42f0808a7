package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/usherproxy/usher/test/bench/report"
)

// Where the page and its plots are, relative to the project's folder.
const (
	pageFile  = "docs/benchmarks.md"
	plotsName = "benchmarks"
)

// writePage writes the page and the plots from results.
func writePage(o options) error {
	run, err := report.Read(o.page)
	if err != nil {
		return err
	}
	if len(run.Results) == 0 {
		return errors.New(o.page + " has no results")
	}
	plots := filepath.Join(filepath.Dir(pageFile), plotsName)
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	for figure, svg := range report.Plots(run.Results) {
		if err := os.WriteFile(filepath.Join(plots, figure+".svg"), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(pageFile, []byte(report.Page(run, plotsName, configurations())), 0o644)
}

// configurations are the configurations of the peers.
func configurations() []report.Listing {
	cores := runtime.NumCPU()
	return []report.Listing{
		{Title: "HAProxy (`haproxy -db -f FILE`)", Text: haproxyConfig(cores, onVIP)},
		{Title: fmt.Sprintf("HAProxy behind nftables (it listens on %s)", elsewhere.echo.Addr()), Text: strings.Join(nftablesRules(elsewhere), "\n")},
		{Title: "HAProxy behind iptables", Text: strings.Join(iptablesRules(elsewhere), "\n")},
		{Title: "nginx", Text: nginxConfig("DIR", cores)},
		{Title: "Kernel DNAT", Text: strings.Join(iptablesRules(onEndpoint), "\n")},
		{Title: "usher (`usher run --manifests DIR --portal PORTAL`, all other flags at their defaults)", Text: usherManifest()},
	}
}
