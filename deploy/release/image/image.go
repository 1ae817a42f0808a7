package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/usherproxy/usher/deploy/release/sbom"
)

// label has the metadata of an image.
type label struct {
	repository, version, revision string
	created                       time.Time
}

// annotations returns the metadata by the names of the OCI image specification, annotations.md.
func (l label) annotations() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":         "usher",
		"org.opencontainers.image.description":   "A service proxy for Kubernetes that works in userspace",
		"org.opencontainers.image.url":           "https://github.com/usherproxy/usher",
		"org.opencontainers.image.source":        "https://github.com/usherproxy/usher",
		"org.opencontainers.image.documentation": "https://github.com/usherproxy/usher/tree/main/docs",
		// usher; iptables, nft and their libraries; Mozilla's certificates. Each package's terms are in /usr/share/doc.
		"org.opencontainers.image.licenses": "Apache-2.0 AND GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.1-or-later AND BSD-3-Clause AND MIT AND MPL-2.0",
		"org.opencontainers.image.version":  l.version,
		"org.opencontainers.image.revision": l.revision,
		"org.opencontainers.image.created":  l.created.Format(time.RFC3339),
	}
}

// user is neither root nor a user of the machine. Kubernetes' runAsNonRoot can verify a number,
// without a name in /etc/passwd. Pods that change rules request root themselves: Kubernetes
// gives capabilities to no other user.
const user = "65532:65532"

// A platformImage is the image for one architecture.
type platformImage struct {
	v1.Image
	arch string
}

// contents are the layers of an image, as tar archives.
type contents struct {
	lower, upper []byte
	lowerTime    time.Time // of the files in lower
	bill         []byte    // the image's software bill of materials, which is also in upper
}

// contents returns the layers of the image for an architecture.
func (l label) contents(cache, binaries, arch string) (contents, error) {
	lock, err := parseLock(bytes.NewReader(lockText))
	if err != nil {
		return contents{}, err
	}
	packages, err := lock.fetch(cache, arch)
	if err != nil {
		return contents{}, fmt.Errorf("%s: %w", arch, err)
	}
	base, used, err := rootfs(packages)
	if err != nil {
		return contents{}, fmt.Errorf("%s: %w", arch, err)
	}
	binary := filepath.Join(binaries, "linux-"+arch, "usher")
	program, err := os.ReadFile(binary)
	if err != nil {
		return contents{}, err
	}
	bill, err := l.bill(binary, used)
	if err != nil {
		return contents{}, err
	}
	lower, err := packed(base, lock.taken)
	if err != nil {
		return contents{}, err
	}
	upper, err := packed(map[string]file{
		"usr/local/bin/usher":                 {mode: 0o755, text: program},
		"usr/share/doc/usher/usher.spdx.json": {mode: 0o644, text: bill},
	}, l.created)
	return contents{lower: lower, upper: upper, lowerTime: lock.taken, bill: bill}, err
}

// image builds the image for an architecture.
func (l label) image(arch string, of contents) (platformImage, error) {
	lower, err := layer(of.lower)
	if err != nil {
		return platformImage{}, err
	}
	upper, err := layer(of.upper)
	if err != nil {
		return platformImage{}, err
	}
	created := v1.Time{Time: l.created}
	config := &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Created:      created,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env:        []string{"PATH=/usr/local/bin:/usr/sbin"},
			User:       user,
			Entrypoint: []string{"usher"},
			Cmd:        []string{"--help"},
			Labels:     l.annotations(),
		},
	}
	image, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), config)
	if err != nil {
		return platformImage{}, err
	}
	image, err = mutate.Append(image,
		mutate.Addendum{Layer: lower, MediaType: types.OCILayerZStd, History: v1.History{Created: v1.Time{Time: of.lowerTime}, CreatedBy: "iptables, nft and what they need, of Debian's packages"}},
		mutate.Addendum{Layer: upper, MediaType: types.OCILayerZStd, History: v1.History{Created: created, CreatedBy: "usher " + l.version}},
	)
	if err != nil {
		return platformImage{}, err
	}
	return platformImage{mutate.Annotations(image, l.annotations()).(v1.Image), arch}, nil
}

// bill returns the image's software bill of materials, as JSON.
func (l label) bill(binary string, used []*debianPackage) ([]byte, error) {
	doc, err := sbom.Program(binary, l.version, l.created)
	if err != nil {
		return nil, err
	}
	sbom.Image(doc, l.repository, l.version)
	for _, p := range used {
		sbom.Add(doc, "deb/debian/", p.field("Package"), p.field("Version"))
	}
	return sbom.JSON(doc)
}

// zstdLevel is the compression level of layers. They are a fifth smaller than with gzip, and container
// runtimes have supported zstd for years: containerd 1.5, CRI-O 1.20, Docker 23, Podman 2.
const zstdLevel = 19

func layer(text []byte) (v1.Layer, error) {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompression(compression.ZStd), tarball.WithCompressionLevel(zstdLevel), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayerZStd))
}

// packed returns a tar archive with the files, by path, and their folders, all with the same time.
func packed(files map[string]file, at time.Time) ([]byte, error) {
	entries := map[string]*tar.Header{}
	for name, f := range files {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			entries[dir] = &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		}
		switch {
		case f.folder:
			entries[name] = &tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: f.mode}
		case f.link != "":
			entries[name] = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Mode: f.mode, Linkname: f.link}
		default:
			entries[name] = &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: f.mode, Size: int64(len(f.text))}
		}
	}
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(entries)) { // a folder comes before its contents
		entries[name].ModTime = at
		if err := archive.WriteHeader(entries[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if _, err := archive.Write(files[name].text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	err := archive.Close()
	return out.Bytes(), err
}

// write writes the images as one archive: an OCI image layout, whose index names one index
// for all architectures. It prints the digest of the latter.
func (l label) write(out string, images []platformImage) error {
	var index v1.ImageIndex = empty.Index
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: "linux", Architecture: image.arch},
		}})
	}
	index = mutate.Annotations(mutate.IndexMediaType(index, types.OCIImageIndex), l.annotations()).(v1.ImageIndex)
	whole := mutate.IndexMediaType(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{
		Annotations: map[string]string{
			"org.opencontainers.image.ref.name": l.version,                      // for skopeo
			"io.containerd.image.name":          l.repository + ":" + l.version, // for ctr and docker load
		},
	}}), types.OCIImageIndex)
	dir, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, whole); err != nil {
		return err
	}
	files := map[string]file{}
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		files[name] = file{mode: 0o644, text: text}
		return err
	})
	if err != nil {
		return err
	}
	archive, err := packed(files, l.created)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out, archive, 0o644); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s\n%s:%s@%s\n", out, l.repository, l.version, digest)
	return nil
}
