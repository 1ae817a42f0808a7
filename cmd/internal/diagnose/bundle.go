package diagnose

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/usherproxy/usher/proxy/admin/api"
	"github.com/usherproxy/usher/proxy/admin/client"
)

// Limits of a bundle, in bytes before compression. The bundle notes where content beyond maxFile and maxBundle is
// missing, but not where tail omits content.
const (
	maxFile   = 8 << 20
	maxBundle = 64 << 20
	maxLog    = 1 << 20 // for a log or another file of the node
)

// Time limits for collecting a part, and for all queries together: usher may hang.
const (
	bundleTime = 10 * time.Second
	askingTime = 3 * bundleTime
)

const readme = `Diagnostic data that usher collected on this node.

  diagnose.txt    findings of 'usher diagnose'
  version.txt     version and platform
  configz.json    flags in force
  api/            responses of usher's API: status, Services with endpoints, connections
                  (open ones, and records of ended ones), the trace (steps of connections,
                  changes of Services and endpoints), portal rules (wanted and installed)
  metrics.txt     /metrics
  node/           system, addresses, routes, routing rules, kernel settings, usher's iptables
                  and nftables rules
  log.txt         the end of usher's log, if available

It contains names and addresses of Services, Pods and clients. Manifests and kubeconfigs
are not included; text that looks like a token, password or key is replaced by "` + leftOut + `".
`

// part is a file of a bundle.
type part struct {
	name string
	get  func(context.Context) ([]byte, error)
}

// Bundle collects the data that a maintainer needs.
type Bundle struct {
	Client  *client.Client
	Log     string // a file whose end is included; "" means usher's journald log
	Version string // the program's
	Found   Result
	Failed  error // the error of the checks, if they failed
}

// Create writes the bundle to a new file.
func (b *Bundle) Create(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s already exists; name another file, or remove it", path)
	}
	if errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; to write to standard output, use --bundle=-", err)
	}
	if err != nil {
		return err
	}
	err = errors.Join(b.Write(ctx, f), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// Write writes the bundle as a .tgz.
func (b *Bundle) Write(ctx context.Context, out io.Writer) error {
	asking, cancel := context.WithTimeout(ctx, askingTime)
	defer cancel()
	compressed := gzip.NewWriter(out)
	archive := tar.NewWriter(compressed)
	room := maxBundle
	for _, p := range b.parts(asking) {
		text := p.text(ctx)
		if most := min(maxFile, room); len(text) > most {
			text = append(text[:most:most], "\n… the rest was omitted because of its size\n"...)
		}
		room = max(0, room-len(text))
		head := &tar.Header{Name: "usher-bundle/" + p.name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now()}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// text returns the contents of the file without secrets. If they are incomplete, the reason follows.
func (p part) text(ctx context.Context) []byte {
	ctx, cancel := context.WithTimeout(ctx, bundleTime)
	defer cancel()
	return withoutSecrets(orWhy(p.get(ctx)))
}

// parts returns all parts of the bundle; asking limits the time for queries to usher.
func (b *Bundle) parts(asking context.Context) (all []part) {
	add := func(name string, get func(context.Context) ([]byte, error)) { all = append(all, part{name, get}) }
	text := func(name, text string) { add(name, func(context.Context) ([]byte, error) { return []byte(text), nil }) }
	answer := func(name, path string) {
		add(name, func(ctx context.Context) ([]byte, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(asking, cancel)()
			body, status, err := b.Client.Raw(ctx, path, maxFile+1)
			if err == nil && status != http.StatusOK { // such as that of /healthz on a problem
				body = fmt.Appendf(body, "HTTP status %d %s\n", status, http.StatusText(status))
			}
			return body, err
		})
	}
	// collect adds a file with the output of commands and the contents of files. /proc helps where the commands are
	// missing.
	collect := func(name string, lines ...string) {
		add(name, func(ctx context.Context) ([]byte, error) {
			var all bytes.Buffer
			for _, line := range lines {
				var text []byte
				var err error
				if words := strings.Fields(line); strings.HasPrefix(line, "/") {
					text, err = tail(line)
				} else {
					text, err = output(ctx, words[0], words[1:]...)
				}
				fmt.Fprintf(&all, "# %s\n%s\n", line, orWhy(text, err))
			}
			return all.Bytes(), nil
		})
	}
	text("README", readme)
	if b.Failed != nil {
		text("diagnose.txt", "usher diagnose failed: "+b.Failed.Error()+"\n")
	} else {
		text("diagnose.txt", ansi.Strip(strings.Join(b.Found.Lines(100), "\n"))+"\n")
	}
	text("version.txt", fmt.Sprintf("%s\n%s/%s, %d processors\n", b.Version, runtime.GOOS, runtime.GOARCH, runtime.NumCPU()))
	collect("node/system.txt", "uname -a", "/proc/version", "/etc/os-release")
	answer("configz.json", "/configz")
	answer("metrics.txt", "/metrics")
	answer("healthz.json", "/healthz")
	for _, path := range []string{"status", "services?limit=1000", "connections?state=all&limit=1000", "portals", "affinity?limit=1000"} {
		name, _, _ := strings.Cut(path, "?")
		answer("api/"+name+".json", api.Prefix+"/"+path)
	}
	answer("api/events.txt", api.Prefix+"/events?history=true&follow=false")
	for i, s := range b.Found.details {
		if i < maxServices {
			answer("api/services/"+s.Namespace+"/"+s.Name+".json", api.Prefix+"/services/"+s.Namespace+"/"+s.Name)
		}
	}
	collect("node/addresses.txt", "ip -s addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip -6 rule",
		"/proc/net/dev", "/proc/net/fib_trie", "/proc/net/route", "/proc/net/if_inet6", "/proc/net/ipv6_route")
	collect("node/nftables.txt", "nft -s list table ip usher", "nft -s list table ip6 usher", "nft list tables")
	add("node/iptables.txt", ownRules)
	add("node/sysctls.txt", settings)
	add("log.txt", func(ctx context.Context) ([]byte, error) {
		if b.Log != "" {
			return tail(b.Log)
		}
		text, err := output(ctx, "journalctl", "--no-pager", "-n", "2000", "-t", "usher", "-u", "usher")
		if err != nil {
			err = fmt.Errorf("%w; if usher runs in a Pod, use 'kubectl logs'", err)
		}
		return text, err
	})
	return all
}

// ownRules returns the iptables rules of usher's chains, and those that jump to them, with the names of all tables.
func ownRules(ctx context.Context) ([]byte, error) {
	var b bytes.Buffer
	for _, program := range []string{"iptables-save", "ip6tables-save", "iptables-legacy-save", "ip6tables-legacy-save"} {
		var own []byte
		text, err := output(ctx, program)
		for line := range bytes.Lines(text) {
			if bytes.Contains(line, []byte("USHER-")) || line[0] == '*' {
				own = append(own, line...)
			}
		}
		fmt.Fprintf(&b, "# %s, rules of usher\n%s", program, orWhy(own, err))
	}
	return b.Bytes(), nil
}

// orWhy appends err, the reason why a text is incomplete, to the text.
func orWhy(text []byte, err error) []byte {
	if err != nil {
		text = fmt.Appendf(text, "unavailable: %v\n", err)
	}
	return text
}

// settings returns the relevant settings of the kernel.
func settings(context.Context) ([]byte, error) {
	var b bytes.Buffer
	for _, pattern := range []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet", "net/ipv4/conf/*/src_valid_mark",
		"net/ipv4/ip_local_port_range", "net/ipv4/ip_nonlocal_bind", "net/ipv6/conf/*/disable_ipv6", "net/ipv4/tcp_*mem", "net/core/somaxconn", "net/core/*mem_max",
		"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_*timeout*", "net/bridge/*", "fs/file-nr", "fs/nr_open",
	} {
		names, _ := filepath.Glob("/proc/sys/" + pattern) // the patterns are well-formed
		for _, name := range names {
			text, err := os.ReadFile(name)
			fmt.Fprintf(&b, "%s = %s\n", strings.ReplaceAll(strings.TrimPrefix(name, "/proc/sys/"), "/", "."), bytes.TrimSpace(orWhy(text, err)))
		}
	}
	return b.Bytes(), nil
}

// tail returns the last maxLog bytes of a file, in whole lines. If the file reports no size, as in /proc, it returns
// the first ones.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cut := false
	if info, err := f.Stat(); err == nil && info.Size() > maxLog {
		_, err = f.Seek(-maxLog, io.SeekEnd)
		cut = err == nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxLog))
	if cut {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text, err
}
