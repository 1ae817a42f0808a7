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

// Connection says how to reach an API server. The zero value is for a Pod, which
// finds address and credentials in its environment.
type Connection struct {
	Kubeconfig string // file; "" for the credentials of a Pod, unless AsUser
	Context    string // of the kubeconfig; "" for its current one
	Server     string // URL; "" for the kubeconfig's, or the Pod's environment's

	// AsUser says to use the kubeconfig that kubectl would, if none is named.
	AsUser bool

	// QPS and Burst bound requests a second; 0 means client-go's defaults.
	QPS   float32
	Burst int
	// AcceptContentTypes and ContentType are the encodings; "" means protobuf.
	AcceptContentTypes, ContentType string

	UserAgent string // "" for client-go's

	// Mark is the mark (SO_MARK) of what is sent to the API server, by which the portal leaves it
	// alone: else a Service that has the API server's address as an external IP cuts this process
	// off. It is not set where the process may not. 0 means none. Linux only.
	Mark uint32
}

// Connect makes a client. It does not wait for the API server: Reach tells
// whether that sends what there is.
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

// RESTConfig returns what makes a client, for those that need another than Connect's.
func (c Connection) RESTConfig() (*rest.Config, error) {
	config, err := c.load()
	if err != nil {
		return nil, err
	}
	config.UserAgent = cmp.Or(c.UserAgent, rest.DefaultKubernetesUserAgent())
	config.QPS, config.Burst = c.QPS, c.Burst
	config.AcceptContentTypes, config.ContentType = c.AcceptContentTypes, c.ContentType
	if c.Mark != 0 {
		// Timeouts as client-go's own dialer has them.
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

// kubeconfig returns what the kubeconfig says.
func (c Connection) kubeconfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.Context}
	overrides.ClusterInfo.Server = c.Server
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// unusable says which kubeconfig cannot be used, and why.
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

// Namespace returns the one that the kubeconfig's context names, or "default".
func (c Connection) Namespace() (string, error) {
	namespace, _, err := c.kubeconfig().Namespace()
	if err != nil {
		return "", c.unusable(err)
	}
	return namespace, nil
}
