package registry

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-gpu/berth/internal/smallfile"
)

// maxCertificate bounds a file of certificates, in bytes.
const maxCertificate = 1 << 20

// tls says whom to trust for a registry, and as whom to come. A registry of this
// machine for which nobody is named is trusted as it is, as docker does.
func (a Access) tls(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, dir := range a.Certs {
		if err := addCerts(c, filepath.Join(dir, host)); err != nil {
			return nil, err
		}
	}
	c.InsecureSkipVerify = loopback(host) && c.RootCAs == nil
	return c, nil
}

// addCerts reads one registry's directory, which needn't exist.
func addCerts(c *tls.Config, dir string) error {
	names, err := smallfile.Names(dir)
	if err != nil {
		return fmt.Errorf("look for certificates: %w", err)
	}
	for _, name := range names {
		name = filepath.Join(dir, name)
		base, ours := strings.CutSuffix(name, ".cert")
		if !ours && !strings.HasSuffix(name, ".crt") {
			continue
		}
		if ours && exists(base+".key") {
			pair, err := tls.LoadX509KeyPair(name, base+".key")
			if err != nil {
				return fmt.Errorf("read certificate %s: %w", name, err)
			}
			c.Certificates = append(c.Certificates, pair)
			continue
		}
		if err := addAuthority(c, name); err != nil {
			return err
		}
	}
	return nil
}

func addAuthority(c *tls.Config, name string) error {
	data, err := smallfile.Read(name, maxCertificate)
	if err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	if c.RootCAs == nil {
		if c.RootCAs, err = x509.SystemCertPool(); err != nil {
			c.RootCAs = x509.NewCertPool() // a system without any
		}
	}
	if !c.RootCAs.AppendCertsFromPEM(data) {
		return fmt.Errorf("read certificate %s: it holds none", name)
	}
	return nil
}
