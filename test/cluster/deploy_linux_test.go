package cluster

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/usherproxy/usher/test/cluster/control"
)

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
