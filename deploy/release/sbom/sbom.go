package sbom

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// Program describes the Go program at file, of this version. created is recorded as the
// time of the description. The same program, version and time give the same document. It is an
// error if Go has not linked the file from modules.
func Program(file, version string, created time.Time) (*spdx.Document, error) {
	binary, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if info.Main.Path == "" {
		return nil, fmt.Errorf("%s: Go has noted no modules in it", file)
	}
	sum1, sum256 := sha1.Sum(binary), sha256.Sum256(binary)
	name := path.Base(info.Path)
	doc := &spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      fmt.Sprintf("%s %s %s/%s", name, version, setting(info, "GOOS"), setting(info, "GOARCH")),
		DocumentNamespace: fmt.Sprintf("https://%s/spdx/%s", info.Main.Path, name), // JSON completes it
		CreationInfo: &spdx.CreationInfo{
			Creators: []spdx.Creator{{CreatorType: "Tool", Creator: info.Main.Path + "/deploy/release"}},
			Created:  created.UTC().Format(time.RFC3339),
		},
	}
	program := &spdx.Package{
		PackageName:             info.Main.Path,
		PackageVersion:          version,
		PackageFileName:         name,
		PackageDownloadLocation: "https://" + info.Main.Path,
		PackageChecksums: []spdx.Checksum{
			{Algorithm: spdx.SHA1, Value: hex.EncodeToString(sum1[:])},
			{Algorithm: spdx.SHA256, Value: hex.EncodeToString(sum256[:])},
		},
		PackageExternalReferences: purl("golang/" + info.Main.Path + "@" + version),
		PackageSourceInfo:         sourceInfo(info),
		PackageLicenseConcluded:   "Apache-2.0",
		PackageLicenseDeclared:    "Apache-2.0",
		PrimaryPackagePurpose:     "APPLICATION",
	}
	identify(doc, program)
	relate(doc, doc.SPDXIdentifier, common.TypeRelationshipDescribe, program)

	Add(doc, "golang/", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		Add(doc, "golang/", module.Path, module.Version)
	}
	return doc, nil
}

// Image turns the description of a program into that of an image, repository:version, which contains the program.
// Packages added later are also in the image.
func Image(doc *spdx.Document, repository, version string) {
	image := &spdx.Package{
		PackageName:             repository,
		PackageVersion:          version,
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "NOASSERTION",
		PrimaryPackagePurpose:   "CONTAINER",
	}
	identify(doc, image)
	doc.DocumentName = "image of " + doc.DocumentName
	described(doc).RefB = common.MakeDocElementID("", string(image.PackageSPDXIdentifier))
	relate(doc, image.PackageSPDXIdentifier, common.TypeRelationshipContains, doc.Packages[0])
}

// described is the relationship that names the element that doc describes.
func described(doc *spdx.Document) *spdx.Relationship { return doc.Relationships[0] }

// Add records that the described element contains a package. kind is the prefix of its package
// URL (https://github.com/package-url/purl-spec), such as "golang/" or "deb/debian/".
func Add(doc *spdx.Document, kind, name, version string) {
	p := &spdx.Package{
		PackageName:               name,
		PackageVersion:            version,
		PackageDownloadLocation:   "NOASSERTION",
		PackageExternalReferences: purl(kind + name + "@" + version),
		PackageLicenseConcluded:   "NOASSERTION",
		PackageLicenseDeclared:    "NOASSERTION",
		PrimaryPackagePurpose:     "LIBRARY",
	}
	identify(doc, p)
	relate(doc, described(doc).RefB.ElementRefID, common.TypeRelationshipContains, p)
}

// JSON returns doc as JSON. Call it last: the namespace gets the SHA-256 of the rest, so that it is unique
// (SPDX 2.3, 6.5).
func JSON(doc *spdx.Document) ([]byte, error) {
	text, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	doc.DocumentNamespace += fmt.Sprintf("-%x", sha256.Sum256(text))
	var out bytes.Buffer
	err = spdxjson.Write(doc, &out, spdxjson.Indent("  "), spdxjson.EscapeHTML(false))
	return out.Bytes(), err
}

var notInID = regexp.MustCompile(`[^a-zA-Z0-9.]+`)

// identify appends p to doc, with a unique identifier.
func identify(doc *spdx.Document, p *spdx.Package) {
	p.PackageSPDXIdentifier = common.ElementID(fmt.Sprintf("Package-%d-%s", len(doc.Packages), notInID.ReplaceAllString(p.PackageName, "-")))
	doc.Packages = append(doc.Packages, p)
}

func relate(doc *spdx.Document, from common.ElementID, how string, to *spdx.Package) {
	doc.Relationships = append(doc.Relationships, &spdx.Relationship{
		RefA:         common.MakeDocElementID("", string(from)),
		RefB:         common.MakeDocElementID("", string(to.PackageSPDXIdentifier)),
		Relationship: how,
	})
}

// purl returns a package URL, whose version may contain a plus sign.
func purl(rest string) []*spdx.PackageExternalReference {
	return []*spdx.PackageExternalReference{{
		Category: common.CategoryPackageManager,
		RefType:  common.TypePackageManagerPURL,
		Locator:  "pkg:" + strings.ReplaceAll(rest, "+", "%2B"),
	}}
}

// sourceInfo returns the commit, and how the program was built.
func sourceInfo(info *debug.BuildInfo) string {
	var words []string
	for _, s := range info.Settings {
		if s.Key != "GOOS" && s.Key != "GOARCH" && s.Value != "" {
			words = append(words, s.Key+"="+s.Value)
		}
	}
	return strings.Join(words, " ")
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
