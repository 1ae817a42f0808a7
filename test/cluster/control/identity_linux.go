package control

import (
	"context"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Identity identifies a client to the API server: a user with groups, proven by a certificate, or the subject of Token
// if that is set.
type Identity struct {
	User   string
	Groups []string
	Token  string
}

// Admin may do everything.
var Admin = Identity{User: "admin", Groups: []string{"system:masters"}}

// ServiceAccount returns the identity of a Pod that runs under a ServiceAccount. The ServiceAccount must exist.
func (p *Plane) ServiceAccount(ctx context.Context, namespace, name string) Identity {
	GinkgoHelper()
	answer, err := p.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return Identity{User: "system:serviceaccount:" + namespace + ":" + name, Token: answer.Status.Token}
}

// Config returns a client configuration for the test's process, which is outside the control plane's namespace. It
// sets no limit on the request rate.
func (p *Plane) Config(who Identity) *rest.Config {
	GinkgoHelper()
	config := &rest.Config{
		Host:            p.Server(),
		QPS:             -1,
		Dial:            p.dialContext,
		TLSClientConfig: rest.TLSClientConfig{CAData: p.ca.pem},
		BearerToken:     who.Token,
	}
	if who.Token == "" {
		config.CertData, config.KeyData = p.ca.client(who.User, who.Groups...)
	}
	return config
}

// Kubeconfig writes a kubeconfig file for an identity and returns its path. server is the API server's URL, from Server
// or Wire.Server.
func (p *Plane) Kubeconfig(who Identity, server string) string {
	GinkgoHelper()
	user := &clientcmdapi.AuthInfo{Token: who.Token}
	if who.Token == "" {
		user.ClientCertificateData, user.ClientKeyData = p.ca.client(who.User, who.Groups...)
	}
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: server, CertificateAuthorityData: p.ca.pem}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"user": user},
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "user"}},
		CurrentContext: "test",
	})
	Expect(err).NotTo(HaveOccurred())
	file := strings.NewReplacer(":", "-", "/", "-", "[", "", "]", "").Replace(who.User + "@" + strings.TrimPrefix(server, "https://"))
	return p.write(file+".kubeconfig", content)
}
