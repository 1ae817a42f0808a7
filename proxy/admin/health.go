package admin

import (
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
)

// Health answers /healthz and /livez.
//
// A proxy is alive while the last change that was wanted has been applied, or
// has not waited for longer than Timeout. It is healthy if it is also past its
// first full picture, and its node is not about to leave: load balancers ask
// /healthz whether they should send clients here (KEP-3836), the kubelet asks
// /livez whether a restart would help.
type Health struct {
	// Sync returns what was wanted and what was applied, and when.
	Sync func() proxy.SyncStatus
	// Timeout is how long a change may wait.
	Timeout time.Duration
	// APIServer, if not nil, reports whether the API server sends what there is. That
	// it does not is no reason to be unhealthy: what is known goes on being
	// served.
	APIServer func() APIServerStatus
	// Restarts, if not nil, are those of a keeper.
	Restarts *Restarts

	leaving        atomic.Bool
	stopping       atomic.Bool
	healthz, livez counterPair
}

// counterPair counts answers of 200 and of 503.
type counterPair struct{ ok, unavailable atomic.Int64 }

// APIServerStatus says whether the API server sends what there is. Everybody may ask the health
// port: of an error it returns one word, and no text, which may hold addresses and more.
type APIServerStatus struct {
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Reason    string    `json:"error,omitempty"` // a kube.Reason

	Error  string        `json:"-"`
	Remedy string        `json:"-"`
	Skew   time.Duration `json:"-"` // of its clock, ahead of this node's
}

// Restarts are how often usher has ended unexpectedly, and was started again by its
// keeper, and how it ended the last time.
type Restarts struct {
	Count int    `json:"count"`
	Last  string `json:"last"`
}

// SetLeaving says whether this node is being deleted or about to be, or is not known.
func (h *Health) SetLeaving(leaving bool) { h.leaving.Store(leaving) }

// SetStopping says that nothing is accepted any more.
func (h *Health) SetStopping() { h.stopping.Store(true) }

// healthAnswer is the body of an answer. The first five fields are kube-proxy's.
type healthAnswer struct {
	LastUpdated  time.Time        `json:"lastUpdated"`
	CurrentTime  time.Time        `json:"currentTime"`
	NodeEligible *bool            `json:"nodeEligible,omitempty"` // /healthz only
	Healthy      bool             `json:"healthy"`                // but for NodeEligible
	Status       familyHealths    `json:"status,omitempty"`       // of each IP family; none before the first full picture
	PendingSince time.Time        `json:"pendingSince,omitzero"`
	APIServer    *APIServerStatus `json:"apiServer,omitempty"`
	Restarts     *Restarts        `json:"restarts,omitempty"`
	PIDNamespace string           `json:"pidNamespace,omitempty"` // see PIDNamespace
}

// PIDNamespace returns the PID namespace of this process, "pid:[4026531836]", by which answers of /healthz
// from two containers on the node's network differ; "" where there is no /proc.
func PIDNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// familyHealths are of the IP families, by the name that the Kubernetes API has for them.
type familyHealths map[string]familyHealth

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Healthz answers /healthz.
func (h *Health) Healthz(w http.ResponseWriter, _ *http.Request) {
	alive, answer := h.look()
	eligible := !h.leaving.Load()
	answer.NodeEligible, answer.Healthy = &eligible, alive && h.Serving()
	h.answer(w, answer.Healthy && eligible, answer, &h.healthz)
}

// Livez answers /livez.
func (h *Health) Livez(w http.ResponseWriter, _ *http.Request) {
	alive, answer := h.look()
	answer.Healthy = alive
	h.answer(w, alive, answer, &h.livez)
}

// Serving reports whether /healthz would answer 200 but for the node's state.
func (h *Health) Serving() bool {
	alive, answer := h.look()
	return alive && !answer.LastUpdated.IsZero() && !h.stopping.Load()
}

// Alive reports whether /livez would answer 200.
func (h *Health) Alive() bool {
	alive, _ := h.look()
	return alive
}

func (h *Health) look() (alive bool, answer healthAnswer) {
	status, now := h.Sync(), time.Now()
	answer = healthAnswer{LastUpdated: status.LastApplied, CurrentTime: now, PendingSince: status.Pending, Restarts: h.Restarts, PIDNamespace: PIDNamespace()}
	if h.APIServer != nil {
		a := h.APIServer()
		answer.APIServer = &a
	}
	inTime := func(pending time.Time) bool { return pending.IsZero() || now.Sub(pending) <= h.Timeout }
	if !status.LastQueued.IsZero() {
		answer.Status = familyHealths{}
		for _, family := range []config.Family{config.IPv4, config.IPv6} {
			of := status.Of(family)
			answer.Status[family.String()] = familyHealth{of.LastApplied, inTime(of.Pending)}
		}
	}
	return inTime(status.Pending), answer
}

func (h *Health) answer(w http.ResponseWriter, ok bool, answer healthAnswer, counts *counterPair) {
	status := http.StatusOK
	if ok {
		counts.ok.Add(1)
	} else {
		status = http.StatusServiceUnavailable
		counts.unavailable.Add(1)
	}
	WriteJSON(w, status, answer)
}
