package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// eventAPI stands for an API server's Events. test/cluster writes to a real one.
type eventAPI struct {
	mu     sync.Mutex
	events map[string]*corev1.Event // by name
	status int                      // of all responses unless 0; -1 aborts the request
	asked  int
}

func (a *eventAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(code)})
	}
	switch {
	case a.status < 0:
		panic(http.ErrAbortHandler)
	case a.status > 0:
		fail(a.status, metav1.StatusReasonForbidden)
		return
	}
	defer GinkgoRecover()
	var event corev1.Event
	Expect(json.NewDecoder(r.Body).Decode(&event)).To(Succeed())
	if r.Method == http.MethodPatch {
		stored := a.events[r.URL.Path[len("/api/v1/namespaces/default/events/"):]]
		if stored == nil {
			fail(http.StatusNotFound, metav1.StatusReasonNotFound)
			return
		}
		stored.Count, stored.LastTimestamp = event.Count, event.LastTimestamp
		event = *stored
	} else {
		w.WriteHeader(http.StatusCreated)
		a.events[event.Name] = &event
	}
	event.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
	Expect(json.NewEncoder(w).Encode(event)).To(Succeed())
}

// all returns "message count" of each Event.
func (a *eventAPI) all() (list []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		list = append(list, fmt.Sprint(e.Message, " ", e.Count))
	}
	return list
}

func (a *eventAPI) answer(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

func (a *eventAPI) requests() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

var _ = Describe("Events", func() {
	web := types.NamespacedName{Namespace: "shop", Name: "web"} // unknown to the source
	var (
		api    *eventAPI
		events *Events
	)
	BeforeEach(func() {
		api = &eventAPI{events: map[string]*corev1.Event{}}
		server := httptest.NewServer(api)
		DeferCleanup(server.Close)
		client, err := NewClient(&rest.Config{Host: server.URL})
		Expect(err).NotTo(HaveOccurred())
		log, _ := logtest.NewNullLogger()
		source, err := New(Options{Client: client, Log: log})
		Expect(err).NotTo(HaveOccurred())
		events = newEvents(client, source, "worker-1")
		events.again = time.Millisecond
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			events.run(ctx)
		}()
		DeferCleanup(func() { cancel(); <-ended })
	})

	It("are counted if their message is equal, and created again after deletion", func() {
		events.Warn(web, "Failed", "no port")
		events.Warn(web, "Failed", "no port")
		events.Warn(web, "Failed", "no address")
		Eventually(api.all).WithTimeout(patience).Should(ConsistOf("On node worker-1: no port 2", "On node worker-1: no address 1"))
		for _, e := range api.events {
			Expect(e.InvolvedObject).To(Equal(corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "worker-1"}))
			Expect([]string{e.Type, e.Reason, e.Source.Component, e.Source.Host, e.Namespace}).To(Equal([]string{"Warning", "Failed", "usher", "worker-1", "default"}))
		}
		api.mu.Lock()
		clear(api.events)
		api.mu.Unlock()
		events.Warn(web, "Failed", "no port")
		Eventually(api.all).WithTimeout(patience).Should(ConsistOf("On node worker-1: no port 1"))
	})

	It("are sent again if there is no response, but not if they are rejected", func() {
		api.answer(-1)
		events.Repaired(web, "Served", "again")
		Eventually(api.requests).WithTimeout(patience).Should(BeNumerically(">", 1))
		api.answer(0)
		Eventually(api.all).WithTimeout(patience).Should(ConsistOf("On node worker-1: again 1"))

		api.answer(http.StatusForbidden)
		before := api.requests()
		events.Repaired(web, "Served", "refused")
		Eventually(api.requests).WithTimeout(patience).Should(Equal(before + 1))
		api.answer(0)
		events.Repaired(web, "Served", "later")
		Eventually(api.all).WithTimeout(patience).Should(ConsistOf("On node worker-1: again 1", "On node worker-1: later 1"))
	})

	It("are limited per object", func() {
		for n := range 2 * eventsAtOnce {
			events.Warn(web, "Failed", fmt.Sprint(n))
		}
		Eventually(func() int { return len(events.queue) }).WithTimeout(patience).Should(BeZero())
		Eventually(api.all).WithTimeout(patience).Should(HaveLen(eventsAtOnce))
		Consistently(api.all).WithTimeout(100 * time.Millisecond).Should(HaveLen(eventsAtOnce))
	})
})
