package manifest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

var testNetworks = networks{DefaultServiceCIDR, netip.MustParsePrefix("fd00::/112")}

// FuzzRead passes any text to the reader, and its result to the resolver. Neither may panic, take long, or lose an
// error.
func FuzzRead(f *testing.F) {
	for _, pattern := range []string{"testdata/*/*.yaml", "testdata/*/*.json", "../../examples/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			r := read(name, data, reading{}, testNetworks, 1<<20)
			if (r.unreadable || len(r.spoiled) > 0) && len(r.errors) == 0 {
				t.Errorf("%s: something cannot be read, and nothing is said of it", name)
			}
			for _, p := range append(r.errors, r.warnings...) {
				if p.File != name || p.Err == nil {
					t.Errorf("%s: %#v", name, p)
				}
				_ = p.Error()
			}
			resolver := newResolver(testNetworks, config.Node{Name: "here"}, translate.Options{AllowLoopbackEndpoints: true}, false)
			resolver.replace(nil, r.objects)
			resolver.resolve()
			again := read(name, data, r, testNetworks, 1<<20)
			resolver.replace(r.objects, remember(r.objects, again))
			if n := len(resolver.resolve()); n > 0 {
				t.Errorf("%s: %d Services changed without reason", name, n)
			}
		}
	})
}

// many returns a manifest of n Services with one EndpointSlice each.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata:
  name: web-%[1]d
  namespace: shop
  labels:
    app: web-%[1]d
spec:
  selector:
    app: web-%[1]d
  ports:
  - name: http
    port: 80
    targetPort: 8080
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-%[1]d-abcde
  namespace: shop
  labels:
    kubernetes.io/service-name: web-%[1]d
addressType: IPv4
ports:
- name: http
  port: 8080
endpoints:
- addresses: [10.1.%[2]d.%[3]d]
  nodeName: here
- addresses: [10.2.%[2]d.%[3]d]
  nodeName: there
---
`, i, i/250, i%250+1)
	}
	return b.String()
}

// BenchmarkLoad reads 10,000 Services with their EndpointSlices from one file.
func BenchmarkLoad(b *testing.B) {
	file := filepath.Join(b.TempDir(), "many.yaml")
	if err := os.WriteFile(file, []byte(many(10000)), 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r, err := Check(Options{Paths: []string{file}})
		if err != nil || len(r.Services) != 10000 || len(r.Errors) > 0 {
			b.Fatal(err, len(r.Services), r.Errors)
		}
	}
}

// BenchmarkResolve adds a Service to 10,000, and removes it.
func BenchmarkResolve(b *testing.B) {
	r := newResolver(testNetworks, config.Node{}, translate.Options{}, false)
	r.replace(nil, read("many.yaml", []byte(many(10000)), reading{}, testNetworks, maxFileSize).objects)
	if n := len(r.resolve()); n != 10000 {
		b.Fatal(n)
	}
	one := read("one.yaml", []byte(strings.ReplaceAll(many(1), "web-", "other-")), reading{}, testNetworks, maxFileSize).objects
	for b.Loop() {
		for _, change := range [][2][]*object{{nil, one}, {one, nil}} {
			r.replace(change[0], change[1])
			if n := len(r.resolve()); n != 1 {
				b.Fatal(n)
			}
		}
	}
}

// BenchmarkChange changes one Service in a file of 10,000.
func BenchmarkChange(b *testing.B) {
	file := filepath.Join(b.TempDir(), "many.yaml")
	texts := [2]string{many(10000), strings.Replace(many(10000), "10.1.20.5]", "10.3.20.5]", 1)}
	l, err := Options{Paths: []string{file}}.loader()
	if err != nil {
		b.Fatal(err)
	}
	change := func(i int) (changed int) {
		b.StopTimer()
		if err := os.WriteFile(file, []byte(texts[i%2]), 0o644); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		return len(l.load(list(l.paths), time.Now()).changed)
	}
	change(0)
	b.ResetTimer()
	for i := range b.N {
		if n := change(i + 1); n != 1 {
			b.Fatal(n)
		}
	}
}
