#!/bin/sh
# Compares how many datagrams a second go through usher and through nginx's
# stream module (reuseport, one worker per core), taking turns. As root not
# needed; ROUNDS, CLIENTS, WINDOW, SECONDS_EACH say how.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'kill $pids 2>/dev/null || true; rm -rf "$dir"' EXIT
pids=
go build -o "$dir/bench" ./test/bench
CGO_ENABLED=0 go build -o "$dir/usher" ./cmd/usher

"$dir/bench" -echo 127.0.0.1:15300 & pids="$pids $!"
cat > "$dir/nginx.conf" <<CONF
include /etc/nginx/modules-enabled/50-mod-stream.conf;
daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log; worker_processes auto; worker_rlimit_nofile 10000;
events { worker_connections 4096; }
stream {
  access_log off;
  server { listen 127.0.0.1:15301 udp reuseport; proxy_pass 127.0.0.1:15300; proxy_timeout 60s; }
}
CONF
nginx -c "$dir/nginx.conf" & nginx=$!; pids="$pids $nginx"
cat > "$dir/echo.yaml" <<YAML
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{name: main, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo, namespace: default, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: main, port: 15300, protocol: UDP}]
endpoints: [{addresses: [127.0.0.1]}]
YAML
"$dir/usher" run --manifests "$dir/echo.yaml" --portal=none --proxy-port-range=15302-15302 --admin-address= > "$dir/usher.out" 2>&1 & usher=$!; pids="$pids $usher"
sleep 1.5
# busy PID... prints the processor time that processes have used, in 1/100 s.
busy() { for p in "$@"; do cut -d' ' -f14,15 /proc/$p/stat | tr ' ' '\n'; done | awk '{ n += $1 } END { print n }'; }
cpu() { before=$(busy $1); echo "$(one $2); $(( $(busy $1) - before )) ticks of processor time"; }
one() { "$dir/bench" -to "127.0.0.1:$1" -clients "${CLIENTS:-16}" -window "${WINDOW:-4}" -for "${SECONDS_EACH:-3}s"; }
for round in $(seq "${ROUNDS:-3}"); do
	echo "round $round: direct $(one 15300)"
	echo "round $round: nginx  $(cpu "$(pgrep -P $nginx | tr "\n" " ")" 15301)"
	echo "round $round: usher  $(cpu $usher 15302)"
done
