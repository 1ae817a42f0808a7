package main

import (
	"fmt"
	"runtime"
)

// nginx has one worker for each core, each with its own listening sockets.
var nginx = peer{name: "nginx", set: func(s *stage, dir string) (targets, *process, error) {
	file, err := write(dir, "nginx.conf", nginxConfig(dir, runtime.NumCPU()))
	if err != nil {
		return targets{}, nil, err
	}
	if err := s.own(vip); err != nil {
		return targets{}, nil, err
	}
	p, err := s.start("nginx", "-c", file, "-e", dir+"/error.log")
	return onVIP, p, err
}}

func nginxConfig(dir string, workers int) string {
	return fmt.Sprintf(`load_module /usr/lib/nginx/modules/ngx_stream_module.so;
daemon off;
pid %s/nginx.pid;
error_log %s/error.log;
worker_processes %d;
worker_rlimit_nofile 20000;
events { worker_connections 9000; }
stream {
  access_log off;
  proxy_timeout 10m;
  server { listen %s:%d reuseport backlog=4096; proxy_pass %s:%d; }
  server { listen %s:%d reuseport backlog=4096; proxy_pass %s:%d; }
  server { listen %s:%d udp reuseport; proxy_pass %s:%d; }
}
`, dir, dir, workers, vip, echoPort, endpoint, echoTarget, vip, sinkPort, endpoint, sinkTarget, vip, udpPort, endpoint, udpTarget)
}
