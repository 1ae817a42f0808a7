// Package sbom makes a software bill of materials of a Go program, or of an image that has one: an SPDX 2.3 document
// (https://spdx.github.io/spdx-spec/v2.3) that names the program, the release of Go and each
// module that is linked into it. It reads what the linker noted in the program (`go version -m`),
// and not go.mod, which also has modules that only tests need or that no package is taken from.
package sbom
