package main

import (
	"fmt"
	"runtime"
)

// haproxyMax is how many connections HAProxy may have: it refuses to start if
// that does not fit the limit of open files, which may be 20,000.
const haproxyMax = 4000

// haproxy copies with splice(2) where it finds that this helps.
var haproxy = peer{name: "haproxy", noUDP: true, set: func(s *stage, dir string) (targets, *process, error) {
	file, err := write(dir, "haproxy.cfg", haproxyConfig(runtime.NumCPU()))
	if err != nil {
		return targets{}, nil, err
	}
	if err := s.own(vip); err != nil {
		return targets{}, nil, err
	}
	p, err := s.start("haproxy", "-db", "-f", file)
	return onVIP, p, err
}}

func haproxyConfig(threads int) string {
	return fmt.Sprintf(`global
  maxconn %d
  nbthread %d
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 10m
  timeout server 10m
listen echo
  bind %s:%d
  server endpoint %s:%d
listen sink
  bind %s:%d
  server endpoint %s:%d
`, haproxyMax, threads, vip, echoPort, endpoint, echoTarget, vip, sinkPort, endpoint, sinkTarget)
}
