package cluster

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/usherproxy/usher/test/cluster/control"
)

var _ = Describe("deploy/kustomize", func() {
	It("holds nothing that the API server refuses or does not know", func(ctx SpecContext) {
		objects := deployed()
		if len(objects) == 0 {
			Skip("deploy/kustomize has no objects yet")
		}
		resources, err := restmapper.GetAPIGroupResources(plane.Client.Discovery())
		Expect(err).NotTo(HaveOccurred())
		mapper := restmapper.NewDiscoveryRESTMapper(resources)
		client, err := dynamic.NewForConfig(plane.Config(control.Admin))
		Expect(err).NotTo(HaveOccurred())
		force := true
		for _, object := range objects {
			kind := object.GroupVersionKind()
			mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
			Expect(err).NotTo(HaveOccurred(), "%s %s", kind, object.GetName())
			body, err := object.MarshalJSON()
			Expect(err).NotTo(HaveOccurred())
			_, err = client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Patch(ctx, object.GetName(), types.ApplyPatchType, body,
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "usher-test", FieldValidation: metav1.FieldValidationStrict, Force: &force})
			Expect(err).NotTo(HaveOccurred(), "%s %s", kind, object.GetName())
		}
	})
})

// deployed returns the objects in deploy/kustomize.
func deployed() (objects []*unstructured.Unstructured) {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(control.Root(), "deploy", "kustomize", "*.yaml"))
	Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		if filepath.Base(file) != "kustomization.yaml" {
			objects = append(objects, readObjects(file)...)
		}
	}
	return objects
}

func readObjects(path string) (objects []*unstructured.Unstructured) {
	GinkgoHelper()
	f, err := os.Open(path)
	Expect(err).NotTo(HaveOccurred())
	defer f.Close()
	documents := yaml.NewYAMLOrJSONDecoder(bufio.NewReader(f), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		Expect(err).NotTo(HaveOccurred(), path)
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}
