package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/usherproxy/usher/config"
	"github.com/usherproxy/usher/config/translate"
)

// DefaultServiceCIDR is the network for allocating cluster IPs if none is given. It is kubeadm's default.
var DefaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/12")

// maxFileSize is the maximum size of a file in bytes: enough for some 20,000 Services with their EndpointSlices.
const maxFileSize = 32 << 20

// Stdin is the path that stands for standard input.
const Stdin = "-"

// Options say which files to read, and how.
type Options struct {
	// Paths are files, and folders whose .yaml, .yml and .json files are read. The path Stdin stands for Input, which
	// New or Check reads once, to its end.
	Paths []string
	Input io.Reader

	// ServiceCIDRs are the networks for allocating cluster IPs: one, or one of each family. The family of the first is
	// the default for Services. None means DefaultServiceCIDR. Each network has at least 4 addresses.
	ServiceCIDRs []netip.Prefix

	// NodePorts are allocated to Services that need node ports and name none; the zero value means DefaultNodePorts.
	NodePorts Ports

	// LoadBalancerCIDRs are the networks for IPs of Services of type LoadBalancer whose status has none: at most one of
	// each family, with at least 4 addresses. Without any, such Services get no IPs.
	LoadBalancerCIDRs []netip.Prefix

	// OnServiceCIDRs, if not nil, is called with the networks of the ServiceCIDR objects whenever they have changed,
	// before other changes are applied. usher allocates nothing from them.
	OnServiceCIDRs func([]netip.Prefix)

	// Node is the node that this process runs on. It determines which endpoints are local.
	Node config.Node

	// Options apply to every Service. New and Check set AllowLoopbackEndpoints and Nodes.
	translate.Options

	// Discovery requests config.Service.Discovery, and so includes Services that are not proxied.
	Discovery bool

	// Reports, if not nil, gets the current problems of the files.
	Reports *config.Reports

	// Log gets the problems and changes of the files. Nil disables logging.
	Log logrus.FieldLogger
}

func (o Options) loader() (*loader, error) {
	if len(o.ServiceCIDRs) == 0 {
		o.ServiceCIDRs = []netip.Prefix{DefaultServiceCIDR}
	}
	if o.NodePorts == (Ports{}) {
		o.NodePorts = DefaultNodePorts
	}
	o.AllowLoopbackEndpoints = true
	resolver := newResolver(o.ServiceCIDRs, o.Node, o.Options, o.Discovery)
	resolver.nodePorts, resolver.balancerNets = o.NodePorts, o.LoadBalancerCIDRs
	isInput := func(path string) bool { return path == Stdin }
	l := &loader{
		paths:    slices.DeleteFunc(slices.Clone(o.Paths), isInput),
		files:    map[string]*file{},
		debounce: defaultDebounce,
		resolver: resolver,
	}
	if len(l.paths) < len(o.Paths) {
		return l, l.take(o.Input)
	}
	return l, nil
}

// Source reads Services from files, and watches them.
type Source struct {
	loader *loader
	log    logrus.FieldLogger
	notify func() (*fsnotify.Watcher, error)

	onCIDRs func([]netip.Prefix) // may be nil

	// Only Run uses these.
	cidrs    []netip.Prefix  // the last argument of onCIDRs
	said     map[string]bool // the messages of the last load, to recognize new ones
	reported map[string]bool // the objects with Reports
	reports  *config.Reports
	words    config.Words // limits messages about problems
}

var _ config.Source = (*Source)(nil)

type name = types.NamespacedName

// New returns a Source. Of all files, it reads only Input. It returns an error if there are no Paths, or Input cannot
// be read.
func New(opts Options) (*Source, error) {
	if len(opts.Paths) == 0 {
		return nil, errors.New("manifest: no files or directories given")
	}
	l, err := opts.loader()
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	s := &Source{loader: l, log: opts.Log, notify: fsnotify.NewWatcher, reports: opts.Reports, onCIDRs: opts.OnServiceCIDRs}
	s.words.LeftOut = func(namespace string, n int) {
		s.log.WithFields(logrus.Fields{"namespace": namespace, "count": n}).Warn("Messages suppressed for objects of a namespace: too many; \"usher check\" lists all")
	}
	if s.log == nil {
		s.log = &logrus.Logger{} // discards all
	}
	return s, nil
}

// Run reads the files and calls apply with all Services. Then it watches the files until ctx ends, and calls apply with
// changes after the delays of debounce. Run may be called once.
//
// It returns an error at once if a path cannot be examined, or is neither a file nor a folder. All other errors are
// logged. The last content of an unreadable file stays in effect. The Services of a missing file are removed after
// debounce.confirm, the time for replacing a file.
func (s *Source) Run(ctx context.Context, apply func([]config.Service)) error {
	for _, p := range s.loader.paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
			return fmt.Errorf("manifest %s: %w", p, cause(err))
		case !info.IsDir() && !info.Mode().IsRegular():
			return fmt.Errorf("manifest %s: neither a file nor a directory", p)
		}
	}
	w := newWatcher(s.loader.paths, s.loader.debounce, s.notify, s.log)
	defer w.close()
	w.follow(list(s.loader.paths)) // first, so that no change is missed

	var there listing
	var doubts, pending bool
	for first := true; first || w.wait(ctx, there, doubts, pending); {
		there = list(s.loader.paths)
		added := w.follow(there)
		if added && !pending && !first { // changes before the folder was watched were not noticed, and may continue
			pending = true
			continue
		}
		doubts, pending = s.reload(there, apply, first), added
		first = false
	}
	return nil
}

// reload reads the changed files and applies the changes. It reports whether a later load must confirm some of them.
func (s *Source) reload(there listing, apply func([]config.Service), first bool) (doubts bool) {
	l := s.loader.load(there, time.Now())
	s.logProblems(l)
	s.handCIDRs()
	switch log := s.log.WithField("services", s.loader.resolver.store.Served()); {
	case first:
		log.WithField("files", len(s.loader.files)).Info("Manifests read")
	case len(l.changed) > 0:
		log.WithField("changed", len(l.changed)).Info("Manifests changed")
	default:
		return l.doubts
	}
	apply(l.changed)
	return l.doubts
}

// handCIDRs passes on the networks of the ServiceCIDRs, if they have changed.
func (s *Source) handCIDRs() {
	if len(s.loader.resolver.cidrs)+len(s.cidrs) == 0 {
		return
	}
	now := translate.ServiceCIDRs(slices.Concat(slices.Collect(maps.Values(s.loader.resolver.cidrs))...))
	if s.onCIDRs != nil && !slices.Equal(now, s.cidrs) {
		s.cidrs = now
		s.onCIDRs(now)
	}
}

// maxLogged is the maximum number of errors, and that of warnings, logged for one load. usher check lists more.
const maxLogged = 100

// logProblems logs problems once for each change: new ones, and those that remain after their file has changed.
func (s *Source) logProblems(l loaded) {
	said := map[string]bool{}
	logProblems := func(ps []Diagnostic, log func(...any)) {
		logged := 0
		for _, p := range ps {
			text := p.Error()
			if !s.said[text] || l.read[p.File] {
				if logged++; logged <= maxLogged && s.words.Allow(cmp.Or(p.Service.Namespace, p.File), time.Now()) {
					log(config.Cut(text, config.MaxMessage))
				}
			}
			said[text] = true
		}
		if logged > maxLogged {
			log(logged-maxLogged, " more of these; \"usher check\" lists all")
		}
	}
	logProblems(l.errors, s.log.Error)
	logProblems(l.warnings, s.log.Warn)
	s.said = said
	s.report(slices.Concat(l.errors, l.warnings), len(l.errors))
}

// report sets the current Reports. The first rejected of all are errors; the others are warnings about served objects.
func (s *Source) report(all []Diagnostic, rejected int) {
	by := map[string][]config.Report{}
	for i, d := range all {
		if errors.Is(d.Err, errIgnored) {
			continue
		}
		about := d
		about.Object = ""
		r := config.Report{Object: cmp.Or(d.Object, d.File), Service: d.Service, Reason: "ManifestRejected", Message: about.Error()}
		if d.File != "" && d.File != input {
			r.Remedy = fmt.Sprintf("usher check %q lists all problems in it", d.File)
		}
		if i >= rejected {
			r.Reason, r.Served = "ManifestDoubtful", true
		}
		r.Served = r.Served || errors.Is(d.Err, errTwice)
		kind, object, _ := strings.Cut(d.Object, " ")
		if namespace, name, is := strings.Cut(object, "/"); is && kind == "Service" {
			r.Service = types.NamespacedName{Namespace: namespace, Name: name}
		}
		by[r.Object] = append(by[r.Object], r)
	}
	now := time.Now()
	for object := range s.reported {
		if by[object] == nil {
			s.reports.Set(object, now, nil)
		}
	}
	s.reported = map[string]bool{}
	for _, object := range slices.Sorted(maps.Keys(by)) {
		s.reports.Set(object, now, by[object])
		s.reported[object] = true
	}
}

// Result is the result of Check.
type Result struct {
	Files    int              // the number of files read
	Services []config.Service // the Services of the model, in the order of translate.Store.Compute

	// Unproxied is the number of other valid Services: headless ones, those of type ExternalName, and another proxy's.
	Unproxied int

	// Errors are parts that would not be served; Warnings are parts that may not work as intended. Both are sorted by
	// place.
	Errors, Warnings []Diagnostic

	// Unread are the paths without any readable part. Unreadable says that some part cannot be read. Spoiled are the
	// objects, such as "Service default/web", that a file defines only with errors. A Source keeps the previous
	// versions of Spoiled and of unreadable parts.
	Unread     []string
	Unreadable bool
	Spoiled    []string
}

// Check reads the files and folders of opts once, and returns the model and all problems. It returns an error only if
// their Input cannot be read.
func Check(opts Options) (*Result, error) {
	l, err := opts.loader()
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	there := list(l.paths)
	out := l.load(there, time.Now())
	r := &Result{Files: len(l.files), Services: out.changed, Errors: out.errors, Warnings: out.warnings}
	for _, p := range there.empty {
		r.Errors = append(r.Errors, Diagnostic{File: p, Err: errors.New("the directory has no .yaml, .yml or .json file; subdirectories are not read")})
	}
	r.Unproxied = l.resolver.unproxied()
	for _, p := range there.problems {
		r.Unread = append(r.Unread, p.File)
	}
	for _, f := range l.files {
		if f.lacks.unreadable && len(f.objects)+len(f.lacks.spoiled) == 0 {
			r.Unread = append(r.Unread, f.path)
		}
		r.Unreadable = r.Unreadable || f.lacks.unreadable
		left := maps.Clone(f.lacks.spoiled)
		for _, o := range f.objects {
			delete(left, o.key)
		}
		for k := range left {
			r.Spoiled = append(r.Spoiled, k.String())
		}
	}
	slices.Sort(r.Unread)
	slices.Sort(r.Spoiled)
	return r, nil
}
