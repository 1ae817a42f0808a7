# usher in a small image that holds iptables, for the portal of that name.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=devel
RUN make build VERSION="$VERSION"

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/bin/usher /usr/local/bin/usher
ENTRYPOINT ["usher"]
CMD ["--help"]
