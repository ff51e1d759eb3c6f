package resolver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/berth-gpu/berth/launcher/image/registry"
)

// Library is a SIF file of a server with the API of the Container Library, of which it uses two calls. Source: the package client of
// github.com/apptainer/container-library-client.
type Library struct {
	address, path, arch string
	client              *http.Client
	header              http.Header
}

// libraryPath is the path of an image. The entity and the collection of a path without them are the server's defaults.
var libraryPath = regexp.MustCompile(`^(\w[\w.-]*/\w[\w.-]*/)?\w[\w.-]*(:\w[\w.-]*)?$`)

// OpenLibrary returns the image at path, such as "entity/collection/container:tag", for an architecture as Go has it. address is that of the server, with
// scheme. It sends no request.
func OpenLibrary(a registry.Access, address, path, arch string) (*Library, error) {
	if !libraryPath.MatchString(path) {
		return nil, fmt.Errorf("%q is no image of a library: CONTAINER[:TAG] or ENTITY/COLLECTION/CONTAINER[:TAG]", path)
	}
	if !strings.Contains(path, ":") {
		path += ":latest"
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no address of a library, such as https://library.example", address)
	}
	base, _ := http.DefaultTransport.(*http.Transport)
	t := base.Clone()
	t.ResponseHeaderTimeout, t.DisableCompression = maxSilence, true
	return &Library{strings.TrimSuffix(address, "/"), path, arch, &http.Client{Transport: transport{RoundTripper: t, silence: maxSilence, files: true}, CheckRedirect: checkRedirect}, userAgent(a)}, nil
}

// Resolve asks the server for digest and size of the file.
func (l *Library) Resolve(ctx context.Context) (registry.Descriptor, error) {
	body, err := l.requestImage(ctx, "/v1/images/", 0)
	if err != nil {
		return registry.Descriptor{}, err
	}
	defer body.Close() // only read
	data, err := io.ReadAll(io.LimitReader(body, maxDocument))
	if err != nil {
		return registry.Descriptor{}, err
	}
	var said struct {
		Data struct {
			Hash string `json:"hash"`
			Size int64  `json:"size"`
		} `json:"data"`
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return registry.Descriptor{}, fmt.Errorf("library %s: %w", l.address, err)
	}
	algorithm, encoded, _ := strings.Cut(said.Data.Hash, ".")
	if algorithm != "sha256" {
		return registry.Descriptor{}, fmt.Errorf("library %s has no digest of its file, but %q", l.address, makePrintable(said.Data.Hash))
	}
	return registry.Descriptor{Digest: algorithm + ":" + encoded, Size: said.Data.Size}, nil
}

// Fetch reads the file, beginning at offset from.
func (l *Library) Fetch(ctx context.Context, _ registry.Descriptor, from int64) (io.ReadCloser, error) {
	return l.requestImage(ctx, "/v1/imagefile/", from)
}

func (l *Library) requestImage(ctx context.Context, call string, from int64) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.address+call+l.path+"?arch="+url.QueryEscape(l.arch), nil)
	if err != nil {
		return nil, err
	}
	req.Header = l.header.Clone()
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	res, err := l.client.Do(req)
	if err != nil {
		var request *url.Error
		if errors.As(err, &request) {
			err = request.Err // without the address of the file
		}
		return nil, fmt.Errorf("library %s: %w", l.address, err)
	}
	switch {
	case res.StatusCode == http.StatusPartialContent && from > 0:
		return res.Body, nil
	case res.StatusCode == http.StatusOK:
		if _, err := io.CopyN(io.Discard, res.Body, from); err != nil {
			return nil, errors.Join(err, res.Body.Close())
		}
		return res.Body, nil
	case res.StatusCode == http.StatusNotFound:
		err = fmt.Errorf("%w in library %s", registry.ErrNotFound, l.address)
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		err = fmt.Errorf("%w by library %s", registry.ErrDenied, l.address)
	default:
		err = fmt.Errorf("library %s says %d", l.address, res.StatusCode)
	}
	return nil, errors.Join(err, res.Body.Close())
}
