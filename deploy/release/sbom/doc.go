// Package sbom builds a software bill of materials of a Go program, or of an image that has one: an SPDX 2.3 document
// (https://spdx.github.io/spdx-spec/v2.3) that names the program, the release of Go and each
// module that is linked into it. It reads the linker's record in the program (`go version -m`)
// instead of go.mod, which also lists modules that only tests need or that provide no linked package.
package sbom
