// Package render renders the manifests in deploy/, as kubectl and helm do.
package render

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Namespace and Release are the values for which the chart is rendered.
const (
	Namespace = "kube-system"
	Release   = "usher"
)

// Kustomize renders a folder with a kustomization, as 'kubectl kustomize' does.
func Kustomize(dir string) ([]byte, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return resources.AsYaml()
}

// Chart renders a chart with values over its defaults, as 'helm template' does. It returns the objects and the notes.
// Values that the chart's schema does not allow are an error.
func Chart(dir string, values map[string]any) (objects []byte, notes string, err error) {
	chart, err := loader.Load(dir)
	if err != nil {
		return nil, "", err
	}
	release := common.ReleaseOptions{Name: Release, Namespace: Namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, values, release, common.DefaultCapabilities)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		switch {
		case path.Base(name) == "NOTES.txt":
			notes = files[name]
		case path.Ext(name) == ".yaml" && strings.TrimSpace(files[name]) != "":
			fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(files[name]))
		}
	}
	return []byte(out.String()), notes, nil
}
