package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// Client sends requests to an API server. It replaces client-go's generated clientset, which links all API groups of
// Kubernetes (12 MB); usher uses three.
type Client struct {
	core, discovery, networking rest.Interface

	// Metadata reads only the metadata of objects.
	Metadata metadata.Interface
}

// scheme has the objects of Client's API groups.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}()

// NewClient returns a Client. It sends nothing yet.
func NewClient(config *rest.Config) (*Client, error) {
	sender, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
	}
	return newClient(config, sender)
}

// newClient returns a Client that sends its requests with sender.
func newClient(config *rest.Config, sender *http.Client) (*Client, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if config.QPS > 0 { // one limit for all groups
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, cmp.Or(config.Burst, rest.DefaultBurst))
	}
	c := &Client{}
	var err error
	for _, group := range []struct {
		path    string
		version schema.GroupVersion
		client  *rest.Interface
	}{
		{"/api", corev1.SchemeGroupVersion, &c.core},
		{"/apis", discoveryv1.SchemeGroupVersion, &c.discovery},
		{"/apis", networkingv1.SchemeGroupVersion, &c.networking},
	} {
		config.APIPath, config.GroupVersion = group.path, &group.version
		if *group.client, err = rest.RESTClientForConfigAndClient(config, sender); err != nil {
			return nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
		}
	}
	if c.Metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(config), sender); err != nil {
		return nil, fmt.Errorf("connecting to the API server %s: %w", config.Host, err)
	}
	return c, nil
}

// Pods lists the Pods of a namespace that options select.
func (c *Client) Pods(ctx context.Context, namespace string, options metav1.ListOptions) (*corev1.PodList, error) {
	pods := &corev1.PodList{}
	return pods, c.core.Get().Namespace(namespace).Resource("pods").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pods)
}
