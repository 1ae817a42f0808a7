// Package spans tells OpenTelemetry of connections: each that has ended is a span, with a
// child for each attempt, if it has failed, was retried or slow, and otherwise if a sampler
// says so.
//
// It reads the trace, so the data path does nothing for it and never waits for it. What it
// cannot export as fast as connections end is lost, which is counted. Where spans go, and
// everything else, is said by the environment variables that OpenTelemetry has for all
// programs (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/);
// without an endpoint among them there is no Exporter, and nothing is done.
package spans
