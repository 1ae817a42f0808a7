package admin

import (
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/proxy"
	"github.com/usherproxy/usher/proxy/admin/api"
)

// Health serves /healthz and /livez.
//
// A proxy is alive while no requested change has waited for longer than Timeout. It is healthy if it has also
// completed its initial sync, still accepts clients, and its node is not about to leave. Load
// balancers use /healthz to decide whether to send clients here (KEP-3836); the kubelet uses /livez to decide
// whether to restart the Pod.
type Health struct {
	// Sync returns which changes were requested and applied, and when.
	Sync func() proxy.SyncStatus
	// Timeout is how long a change may wait.
	Timeout time.Duration
	// APIServer, if not nil, returns whether the API server sends its objects. A failure does not make the
	// proxy unhealthy: it keeps serving the last known state.
	APIServer func() APIServerStatus
	// Restarts, if not nil, are those of a keeper.
	Restarts *api.Restarts

	leaving        atomic.Bool
	stopping       atomic.Bool
	healthz, livez counterPair
}

// counterPair counts answers of 200 and of 503.
type counterPair struct{ ok, unavailable atomic.Int64 }

// APIServerStatus is whether the API server sends its objects. The health port is open to all clients. So it
// reports an error as one word: the text of an error may contain addresses.
type APIServerStatus struct {
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`
	Reason    string    `json:"error,omitempty"` // a kube.Reason

	Error  string        `json:"-"`
	Remedy string        `json:"-"`
	Skew   time.Duration `json:"-"` // of its clock, ahead of this node's
}

// SetLeaving records whether this node is being deleted, is about to be, or is unknown.
func (h *Health) SetLeaving(leaving bool) { h.leaving.Store(leaving) }

// SetStopping records that the proxy no longer accepts clients.
func (h *Health) SetStopping() { h.stopping.Store(true) }

// healthAnswer is the body of an answer. The first five fields are kube-proxy's.
type healthAnswer struct {
	LastUpdated  time.Time        `json:"lastUpdated"`
	CurrentTime  time.Time        `json:"currentTime"`
	NodeEligible *bool            `json:"nodeEligible,omitempty"` // /healthz only
	Healthy      bool             `json:"healthy"`                // disregarding NodeEligible
	Status       familyHealths    `json:"status,omitempty"`       // of each IP family; none before the initial sync
	PendingSince time.Time        `json:"pendingSince,omitzero"`
	APIServer    *APIServerStatus `json:"apiServer,omitempty"`
	Restarts     *api.Restarts    `json:"restarts,omitempty"`
	PIDNamespace string           `json:"pidNamespace,omitempty"` // see PIDNamespace
}

// PIDNamespace returns the PID namespace of this process, "pid:[4026531836]"; "" without /proc. It
// distinguishes the answers of /healthz from two containers on the node's network.
func PIDNamespace() string {
	name, _ := os.Readlink("/proc/self/ns/pid")
	return name
}

// familyHealths are the healths of the IP families, by the name that the Kubernetes API uses.
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

// Serving reports whether /healthz would answer 200, disregarding the node's state.
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
