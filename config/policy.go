package config

import "time"

// Policy is how the connections of a service port are treated. usher's flags set the policy of the node, and the
// annotations of a Service replace parts of it for its ports. Unless a field says otherwise, 0
// means none.
type Policy struct {
	// Scheduler selects the endpoint for a new connection; 0 is RoundRobin.
	Scheduler Scheduler

	// Probe configures the probes of all endpoints, even of healthy ones.
	Probe Probe

	// EndpointLimit is the maximum number of open connections or associations per endpoint, and QueueTimeout the
	// maximum time that a client waits for an endpoint below the limit.
	EndpointLimit int
	QueueTimeout  time.Duration

	// SlowStart is the time until a new endpoint gets its full share of new connections.
	SlowStart time.Duration

	// IdleTimeout is how long a connection or association stays open without data. MaxAge is its maximum duration, which
	// is shortened at random by up to a tenth.
	IdleTimeout, MaxAge time.Duration

	// HalfClosedTimeout is how long a connection that one side has closed stays open without data.
	HalfClosedTimeout time.Duration

	// DrainTimeout is how long a connection or association stays open after its endpoint left the Service or began to
	// terminate.
	DrainTimeout time.Duration

	// UDPIdleTimeout is how long a UDP session stays open without a datagram in either direction. Until an endpoint has
	// answered, UnansweredTimeout applies if it is shorter. For other protocols, both
	// are 0.
	UDPIdleTimeout, UnansweredTimeout time.Duration

	// AccessLog is set if the connections are in the access log.
	AccessLog bool
}

// DefaultPolicy returns the policy of usher without flags.
func DefaultPolicy() Policy {
	return Policy{
		Scheduler:         RoundRobin,
		Probe:             Probe{Interval: 10 * time.Second, Timeout: 5 * time.Second, Rise: 2, Fall: 3},
		QueueTimeout:      30 * time.Second,
		HalfClosedTimeout: 10 * time.Minute,
		UDPIdleTimeout:    2 * time.Minute,
		UnansweredTimeout: time.Minute,
		AccessLog:         true,
	}
}
