package kube

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Connection says how to reach an API server. The zero value is for a Pod, which gets address and credentials from its
// environment.
type Connection struct {
	Kubeconfig string // file; "" for a Pod's credentials, or with AsUser or Context for kubectl's kubeconfig
	Context    string // of the kubeconfig; "" for its current one
	Server     string // URL; "" for the kubeconfig's, or the Pod's environment's

	// AsUser uses kubectl's kubeconfig if Kubeconfig is empty.
	AsUser bool

	// QPS and Burst limit the requests per second; 0 means client-go's defaults.
	QPS   float32
	Burst int
	// AcceptContentTypes are the encodings of responses; "" means protobuf or JSON. ContentType is that of requests; ""
	// means protobuf.
	AcceptContentTypes, ContentType string

	UserAgent string // "" for client-go's

	// Mark is the mark (SO_MARK) of packets to the API server, so that the portal does not redirect them. Otherwise a
	// Service with the API server's address as an external IP would disconnect this process. Without CAP_NET_ADMIN, the
	// process sets no mark. 0 means none. Linux only.
	Mark uint32
}

// Connect returns a client. It does not wait for the API server: Reach reports whether it answers.
func (c Connection) Connect() (*Client, *Reach, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, nil, err
	}
	reach := &Reach{}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
	}
	client, err := newClient(config, &http.Client{Transport: reach.wrap(transport), Timeout: config.Timeout})
	if err != nil {
		return nil, nil, err
	}
	return client, reach, nil
}

// RESTConfig returns the configuration of a client, for callers that need another client than Connect's.
func (c Connection) RESTConfig() (*rest.Config, error) {
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	config.UserAgent = cmp.Or(c.UserAgent, rest.DefaultKubernetesUserAgent())
	config.QPS, config.Burst = c.QPS, c.Burst
	config.AcceptContentTypes, config.ContentType = c.AcceptContentTypes, c.ContentType
	if c.Mark != 0 {
		// Timeouts as in client-go's own dialer.
		config.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second, Control: c.mark}).DialContext
	}
	if config.ContentType == "" {
		config.ContentType = runtime.ContentTypeProtobuf
	}
	if config.AcceptContentTypes == "" {
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
	return config, nil
}

func (c Connection) load() (*rest.Config, error) {
	if c.Kubeconfig == "" && c.Context == "" && !c.AsUser {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no kubeconfig given, and not running in a Pod: %w", err)
		}
		if c.Server != "" {
			config.Host = c.Server
		}
		return config, nil
	}
	config, err := c.kubeconfig().ClientConfig()
	if err != nil {
		return nil, c.unusable(err)
	}
	return config, nil
}

// kubeconfig returns a loader for the kubeconfig, with the overrides of c.
func (c Connection) kubeconfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	overrides.ClusterInfo.Server = c.Server
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// unusable returns an error that names the unusable kubeconfig and the reason.
func (c Connection) unusable(err error) error {
	at := c.Kubeconfig
	if at == "" {
		at = strings.Join(clientcmd.NewDefaultClientConfigLoadingRules().Precedence, ", ")
	}
	if clientcmd.IsEmptyConfig(err) {
		return fmt.Errorf("kubeconfig %s: no cluster configured", at)
	}
	return fmt.Errorf("kubeconfig %s: %w", at, err)
}

// Namespace returns the namespace in the kubeconfig's context; otherwise that of this Pod, or "default".
func (c Connection) Namespace() (string, error) {
	namespace, _, err := c.kubeconfig().Namespace()
	if err != nil {
		return "", c.unusable(err)
	}
	return namespace, nil
}
