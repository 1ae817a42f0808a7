# usher in a small image: a static binary, and iptables for the portal of that
# name. There is no shell in it, and nothing to update but these two.
#
#     docker build --build-arg VERSION=$(git describe --tags --always) -t ghcr.io/usherproxy/usher .
FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
ARG TARGETOS
ARG TARGETARCH
RUN GOOS="$TARGETOS" GOARCH="$TARGETARCH" make build VERSION="$VERSION"

# On the platform of the image: it is run to see what iptables needs.
FROM debian:bookworm-slim AS iptables
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates iptables
COPY deploy/image/rootfs.sh /
RUN sh /rootfs.sh /rootfs

FROM scratch
COPY --from=iptables /rootfs /
COPY --from=build /src/bin/usher /usr/local/bin/usher
ENV PATH=/usr/local/bin:/usr/sbin
ENTRYPOINT ["usher"]
CMD ["--help"]
