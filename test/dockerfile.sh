#!/bin/sh
# Builds the image of the Dockerfile with buildah, and writes it to an archive, as docker save does:
#
#     test/dockerfile.sh NAME:TAG ARCHIVE [FLAGS OF BUILDAH BUD]
#
# It needs root, and no registry: the image to build in is a small Debian by debootstrap, which is made once and kept,
# with this machine's Go, its modules and what it has compiled. Nothing else is kept. CONTEXT is another folder to build.
set -eu
cd "$(dirname "$0")/.."
name=$1 archive=$2
shift 2

mkdir -p .cache/debian
debian=$PWD/.cache/debian-bookworm-make
exec 9<test/dockerfile.sh
flock 9 # only one process makes it
if [ ! -e "$debian" ]; then
	work=$(mktemp -d "$PWD/.cache/debian-XXXXXX")
	trap 'rm -rf "$work"' EXIT
	unshare --mount --pid --fork --kill-child debootstrap --variant=minbase --include=make bookworm "$work/root" 9<&-
	rm -rf "$work"/root/var/cache/apt/archives/*.deb "$work"/root/var/lib/apt/lists/*
	mv -T "$work/root" "$debian"
	rm -rf "$work"
fi
exec 9<&-

storage=$(mktemp -d)
trap 'rm -rf "$storage"' EXIT
buildah() { command buildah --root "$storage/root" --runroot "$storage/run" --storage-driver vfs "$@"; }

base=$(buildah from scratch)
buildah add --quiet "$base" "$debian" / >/dev/null
buildah config --env "PATH=$(go env GOROOT)/bin:/usr/sbin:/usr/bin" --env GOMODCACHE=/host/modules --env GOCACHE=/host/build \
	--env GOPROXY=off --env GOTOOLCHAIN=local --env GOFLAGS="-trimpath -ldflags=-s" "$base" # as make test, to reuse what it has compiled
buildah commit --quiet --rm "$base" localhost/go >/dev/null

buildah bud --isolation chroot --layers=false --build-arg GO_IMAGE=localhost/go "$@" --tag "$name" \
	--volume "$(go env GOROOT):$(go env GOROOT):ro" --volume "$(go env GOMODCACHE):/host/modules:ro" \
	--volume "$(go env GOCACHE):/host/build" --volume "$PWD/.cache/debian:/var/cache/debian" "${CONTEXT:-.}"
buildah push --quiet "$name" "docker-archive:$archive:$name"
