package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// authority signs the certificates of one control plane.
type authority struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	pem    []byte // of cert
	serial int64
}

func newAuthority() *authority {
	GinkgoHelper()
	a := &authority{key: newKey()}
	template := a.template("usher test authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	Expect(err).NotTo(HaveOccurred())
	a.cert, err = x509.ParseCertificate(der)
	Expect(err).NotTo(HaveOccurred())
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// server returns a certificate for a server with these addresses and names.
func (a *authority) server(addresses []net.IP, names ...string) (cert, key []byte) {
	GinkgoHelper()
	template := a.template("kube-apiserver")
	template.IPAddresses, template.DNSNames = addresses, names
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.sign(template)
}

// client returns a certificate that identifies a user and groups to the API server.
func (a *authority) client(user string, groups ...string) (cert, key []byte) {
	GinkgoHelper()
	template := a.template(user)
	template.Subject.Organization = groups
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *authority) template(name string) *x509.Certificate {
	a.serial++
	return &x509.Certificate{
		SerialNumber: big.NewInt(a.serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func (a *authority) sign(template *x509.Certificate) (cert, key []byte) {
	GinkgoHelper()
	private := newKey()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), encodeKey(private)
}

func newKey() *ecdsa.PrivateKey {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	return key
}

func encodeKey(key *ecdsa.PrivateKey) []byte {
	GinkgoHelper()
	der, err := x509.MarshalECPrivateKey(key)
	Expect(err).NotTo(HaveOccurred())
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
