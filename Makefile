# All targets for developers and users. `make help` lists them.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
CLI     := github.com/usherproxy/usher/cmd/internal/cli
LDFLAGS := -s -w -X $(CLI).Version=$(VERSION)$(if $(REVISION), -X $(CLI).commit=$(REVISION))

# On a terminal, the demo keeps running; otherwise it makes the requests itself and
# exits.
DEMO_FLAGS ?= $(shell test -t 0 || echo --once)

.DEFAULT_GOAL := help

# With the flags of `make build`, so that each library is compiled once for all of them, and linked
# without debug information (-s), which takes a third less CPU time. The race detector needs cgo:
# its builds request it.
lint test walk: export CGO_ENABLED := 0
lint test walk: export GOFLAGS := $(GOFLAGS) -trimpath -ldflags=-s

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/usher, for nodes, and bin/kubectl-usher, for laptops: static binaries
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/usher ./cmd/kubectl-usher

PROGRAMS ?= usher kubectl-usher
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64

# With -buildvcs=true, the build fails if a program cannot record its commit.
.PHONY: programs
programs:
	@for platform in $(PLATFORMS); do for program in $(PROGRAMS); do \
		echo "building $$program for $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} $(GO) build -buildvcs=true -trimpath -ldflags '$(LDFLAGS)' \
			-o bin/release/$${platform%/*}-$${platform#*/}/$$program ./cmd/$$program || exit 1; \
	done; done

.PHONY: release
release: ## make dist/, the files of a release of VERSION=v1.2.3: archives, .deb, .rpm, SBOMs, checksums, notes
	@cd deploy/release && $(GO) run ./packages -check -version '$(VERSION)' -source ../..
	@rm -rf bin/release
	@$(MAKE) --no-print-directory programs
	cd deploy/release && $(GO) run ./packages -version '$(VERSION)' -source ../.. -binaries ../../bin/release -out ../../dist

IMAGE ?= dist/usher-$(VERSION)-image.tar

.PHONY: image
image: ## make dist/usher-VERSION-image.tar, an OCI archive for linux/amd64 and linux/arm64; without a daemon or root
	@$(MAKE) --no-print-directory programs PROGRAMS=usher PLATFORMS='linux/amd64 linux/arm64'
	@cd deploy/release && $(GO) run ./image -cache ../../.cache/debian -binaries ../../bin/release -out '$(abspath $(IMAGE))' -version '$(VERSION)' \
		-revision "$$(git rev-parse HEAD)" -created "$$(git log -1 --format=%cI)"

.PHONY: image-lock
image-lock: ## update deploy/release/image/debian.lock: the image gets Debian's current packages (needs apt, not root)
	cd deploy/release && $(GO) run ./image -cache ../../.cache/debian -lock image/debian.lock

.PHONY: demo
demo: build ## see usher at work (root: on a cluster IP; else: on a loopback address)
	@test/install.sh iptables
	bin/usher demo $(DEMO_FLAGS)

.PHONY: test-fast
test-fast: ## run the short tests, as `go test ./...`: without root and downloads, in minutes
	$(GO) test ./...

.PHONY: test
test: ## run all tests, or SUITES='test packages' of the table at the end; installs what they need (apt, as root); the first time, builds a Kubernetes API server
	@test/install.sh iptables nftables iproute2 procps etcd-server qemu-system-x86 kmod dnsmasq-base dnsutils chromium curl wget git python3 python3-requests haproxy nginx libnginx-mod-stream debootstrap lintian rpm containerd runc skopeo qemu-user-static buildah strace jq prometheus qemu-system-arm
	@test/privileges.sh
	@$(GO) run ./test/all $(SUITES)

# Links the programs and test binaries with the most imports.
.PHONY: cross
cross: ## check that everything, tests too, compiles for macOS and Windows, and that programs and tests can be linked
	@set -e; for system in darwin/arm64 windows/amd64; do \
		export CGO_ENABLED=0 GOOS=$${system%/*} GOARCH=$${system#*/}; \
		echo "$$system"; \
		$(GO) vet ./...; \
		for package in ./cmd/usher ./cmd/kubectl-usher; do $(GO) build -o /dev/null $$package; done; \
		for package in ./cmd/usher ./cmd/kubectl-usher ./proxy; do $(GO) test -c -o /dev/null $$package; done; \
	done

# An interrupted run continues: its results are kept here.
BENCH_RESULTS = .cache/bench$(if $(QUICK),-quick).jsonl

.PHONY: bench
bench: build ## compare usher with HAProxy, nginx and the kernel (as root), and write docs/benchmarks.md; QUICK=1: in three minutes; CLUSTER=1: kube-proxy, too
	@test/install.sh iptables nftables haproxy nginx libnginx-mod-stream
	@mkdir -p .cache
	$(GO) build -o .cache/bench ./test/bench
	.cache/bench $(if $(QUICK),-quick) -results $(BENCH_RESULTS)
	$(if $(CLUSTER),@test/install.sh etcd-server iproute2)
	$(if $(CLUSTER),cd test/cluster && BENCH_RESULTS=$(CURDIR)/$(BENCH_RESULTS) BENCH_ROUNDS=$(CLUSTER) USHER_PROGRAM=$(CURDIR)/bin/usher $(GO) test -count=1 -timeout 3h -ginkgo.focus='beside kube-proxy')
	.cache/bench -report $(BENCH_RESULTS)
	@mv $(BENCH_RESULTS) $(BENCH_RESULTS).last

.PHONY: walk
walk: ## count the files, functions and calls that one event passes (as root also on the control side), and write docs/walk.md
	$(GO) run ./test/walk -page docs/walk.md

.PHONY: fuzz
fuzz: ## run each fuzz target for a minute (FUZZTIME=1m)
	@test/fuzz.sh $(or $(FUZZTIME),1m)

.PHONY: soak
soak: ## everything that can go wrong at once, as root, for DURATION=20m; writes .cache/soak.md; SEED=7 makes a run again
	@test/install.sh iptables nftables iproute2 procps
	cd test && USHER_SOAK=$(or $(DURATION),20m) USHER_SOAK_SEED=$(or $(SEED),$(shell date +%s)) $(GO) test -count=1 -timeout 24h -ginkgo.succinct -ginkgo.focus='a soak: '

.PHONY: generate
generate: ## update generated files: openapi.json, cluster.json, docs/metrics.md
	$(GO) test -count=1 ./proxy/admin/api -update
	$(GO) test -count=1 ./proxy/admin -update

.PHONY: grounds
grounds: ## as root, update the table in docs/requirements.md
	@test/install.sh iptables iproute2 runc qemu-system-x86 kmod
	$(GO) -C test/ground test -count=1 -timeout 30m . -update

.PHONY: recording
recording: build ## record the demo, as root: docs/demo.cast and docs/demo.svg
	@test/install.sh curl iptables
	$(GO) run ./test/recording

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "gofmt would change:"; echo "$$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	cd deploy/release && $(GO) vet ./...
	cd test/deploy && $(GO) vet ./...
	cd test/dashboard && $(GO) vet ./...
	cd test/cluster && $(GO) vet ./...
	cd test/ground && $(GO) vet ./...

.PHONY: clean
clean: ## remove all build output
	rm -rf bin dist .cache
