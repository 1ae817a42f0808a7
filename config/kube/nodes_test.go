package kube

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

func TestAuthorsCannotMakeWatchesBeginAtAnyRate(t *testing.T) {
	g := NewWithT(t)
	log := logrus.New()
	log.SetOutput(t.Output())
	n := &nodeLabels{client: metadata.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"}), log: log, moved: func() {}}
	t.Cleanup(n.all.Wait) // after the end of t.Context
	rack, room := map[string]bool{"example.com/rack": true}, map[string]bool{"example.com/room": true}
	n.follow(t.Context(), rack)
	first := n.watch
	g.Expect(first).NotTo(BeNil())
	for _, asked := range []map[string]bool{nil, rack, nil, room} {
		n.follow(t.Context(), asked)
		g.Expect(n.watch).To(BeIdenticalTo(first))
	}
	first.began = time.Now().Add(-labelsPause)
	n.follow(t.Context(), room)
	g.Expect(n.watch).NotTo(BeIdenticalTo(first))
	g.Expect(n.watch.keys).To(Equal(room))
	n.watch.began = first.began
	n.follow(t.Context(), nil)
	g.Expect(n.watch).To(BeNil())
}
