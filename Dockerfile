# The image, for docker build, podman build and buildah bud. Releases use that of `make image`. deploy/release/image
# defines the files of both; its tests compare what is also written here, such as labels.
#
#     docker build -t REGISTRY/usher:VERSION --build-arg VERSION="$(git describe --tags --always --dirty)" \
#       --build-arg REVISION="$(git rev-parse HEAD)" --build-arg CREATED="$(git log -1 --format=%cI)" .

# Debian, or another Linux, with Go, make and tar.
ARG GO_IMAGE=docker.io/library/golang:1.26-bookworm

# usher is compiled for the other architecture, and Debian's packages are unpacked, not run: no emulator is needed.
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETARCH
ARG VERSION=devel
ARG REVISION
ARG CREATED=1970-01-01T00:00:00Z
ENV CGO_ENABLED=0
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOARCH=$TARGETARCH make build VERSION="$VERSION" REVISION="$REVISION" && \
    install -D bin/usher "bin/release/linux-$TARGETARCH/usher" && \
    cd deploy/release && \
    go run ./image -cache /var/cache/debian -binaries ../../bin/release -root /image -arch "$TARGETARCH" \
      -version "$VERSION" -revision "$REVISION" -created "$CREATED" && \
    cd /image && mkdir base usher && tar -x -p -C base -f base.tar && tar -x -p -C usher -f usher.tar

FROM scratch
# iptables, nft and their dependencies; the layer is the same for all versions of usher.
COPY --from=build /image/base/ /
COPY --from=build /image/usher/ /
ARG VERSION=devel
ARG REVISION
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="usher" \
      org.opencontainers.image.description="A service proxy for Kubernetes that works in userspace" \
      org.opencontainers.image.url="https://github.com/usherproxy/usher" \
      org.opencontainers.image.source="https://github.com/usherproxy/usher" \
      org.opencontainers.image.documentation="https://github.com/usherproxy/usher/tree/main/docs" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.1-or-later AND BSD-3-Clause AND MIT AND MPL-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
ENV PATH=/usr/local/bin:/usr/sbin
# Not root, and numeric, so that runAsNonRoot can check it. The Pods of deploy/ run as root: Kubernetes gives capabilities to
# no other user. For a portal that changes rules: docker run --user 0 --cap-add NET_ADMIN --network host
USER 65532:65532
ENTRYPOINT ["usher"]
CMD ["--help"]
