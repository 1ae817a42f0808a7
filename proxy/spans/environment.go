package spans

import (
	"cmp"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Variables of OpenTelemetry's. The SDK and the exporter read these, and the others.
const (
	disabled       = "OTEL_SDK_DISABLED"
	exporter       = "OTEL_TRACES_EXPORTER"
	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	sampler        = "OTEL_TRACES_SAMPLER"
	samplerArg     = "OTEL_TRACES_SAMPLER_ARG"
)

// wanted reports whether the environment asks for spans: by an endpoint, or by the name of
// an exporter. An error says which variable has what cannot be done.
func wanted() (bool, error) {
	if strings.EqualFold(os.Getenv(disabled), "true") || os.Getenv(exporter) == "none" {
		return false, nil
	}
	if os.Getenv(exporter) == "" && os.Getenv(endpoint) == "" && os.Getenv(tracesEndpoint) == "" {
		return false, nil
	}
	for name, allowed := range map[string][]string{
		exporter:       {"otlp", "none"},
		protocol:       {"http/protobuf"},
		tracesProtocol: {"http/protobuf"},
		sampler:        {"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"},
	} {
		if value := os.Getenv(name); value != "" && !slices.Contains(allowed, value) {
			return false, fmt.Errorf("%s: %q is none of %s", name, value, strings.Join(allowed, ", "))
		}
	}
	for _, name := range []string{endpoint, tracesEndpoint} {
		at := os.Getenv(name)
		if u, err := url.Parse(at); at != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return false, fmt.Errorf("%s: %q is not a URL such as http://collector:4318", name, at)
		}
	}
	return true, nil
}

// sampledShare returns how many of the connections are exported with which nothing is amiss, from
// 0 to 1. Each connection is the root of its trace, so the samplers that ask a parent first do
// as they do without one.
func sampledShare() (float64, error) {
	switch name := strings.TrimPrefix(os.Getenv(sampler), "parentbased_"); name {
	case "always_on":
		return 1, nil
	case "traceidratio":
		value := os.Getenv(samplerArg)
		share, err := strconv.ParseFloat(cmp.Or(value, "1"), 64)
		if err != nil || !(share >= 0 && share <= 1) {
			return 0, fmt.Errorf("%s: %q is not a number from 0 to 1", samplerArg, value)
		}
		return share, nil
	}
	return 0, nil
}
