#!/bin/sh
# Fetches and builds what specs of several suites need: kernels that they boot, and the programs of
# Kubernetes. Without it, the specs wait for the build.
set -eu
cd "$(dirname "$0")/.."
test/kernel.sh
[ "$(uname)" != Linux ] || go -C test/cluster run ./build
