package leasing

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/berth-gpu/berth/gpu/request"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// ParseDeviceFlags returns the request of --gpus and --device together; ok is false if there
// is none.
func ParseDeviceFlags(gpus string, hasGPUs bool, devices []string) (r request.Request, ok bool, err error) {
	if strings.Contains(gpus, "capabilities=") {
		return r, false, fmt.Errorf("--gpus %s: the driver's capabilities are given by a variable, as in -e NVIDIA_DRIVER_CAPABILITIES=compute,utility", gpus)
	}
	if strings.Contains(gpus, "driver=") {
		return r, false, fmt.Errorf("--gpus %s: the driver isn't named: --gpus 2, --gpus all or --gpus device=0,1", gpus)
	}
	if hasGPUs {
		r, err = request.Parse(gpus)
		switch {
		case errors.Is(err, request.ErrNone) && gpus != "":
		case err != nil:
			return r, false, fmt.Errorf("--gpus: %w%s", err, SuggestCount(gpus))
		default:
			ok = true
		}
	}
	var features []string
	for _, d := range devices {
		words, err := parseDevice(d)
		if err != nil {
			return r, false, err
		}
		if strings.HasPrefix(words, "+") {
			features = append(features, words)
			continue
		}
		more, err := request.Parse(words)
		if err != nil {
			return r, false, fmt.Errorf("--device %s: %w", d, err)
		}
		if !ok {
			r, ok = more, true
			continue
		}
		joined, fits := r.Join(more)
		if !fits {
			return r, false, fmt.Errorf("--device %s: together with %s it isn't one request; say all of it with --gpus", d, r)
		}
		r = joined
	}
	return addFeatures(r, ok, features)
}

// SuggestCount returns the end of an error's text with a hint if a value of --gpus looks like the image of a
// command line without a count (berth run --gpus IMAGE), else "". A value looks like an image if it is a model
// without digits, a path, or the name of an image and no request.
func SuggestCount(word string) string {
	const digits = "0123456789"
	r, err := request.Parse(word)
	name, _, tagged := strings.Cut(word, ":")
	isModel := err == nil && r.Model() == word && !strings.ContainsAny(word, digits)
	isPath := strings.HasPrefix(word, "/") || strings.HasPrefix(word, "./")
	_, unnamed := registry.Parse(word)
	isName := err != nil && unnamed == nil && (strings.Contains(word, "/") || tagged && strings.Trim(name, digits) != "")
	if !isModel && !isPath && !isName {
		return ""
	}
	return fmt.Sprintf("; if %s is the image, the count is missing: --gpus 1 %s", word, word)
}

func addFeatures(r request.Request, ok bool, features []string) (request.Request, bool, error) {
	if len(features) == 0 {
		return r, ok, nil
	}
	if !ok {
		return r, false, errors.New("--device berth/with=…: it goes with a request for GPUs, such as --gpus 1")
	}
	r, err := request.Parse(r.String() + "," + strings.Join(features, ","))
	if err != nil {
		return r, false, fmt.Errorf("--device: %w", err)
	}
	return r, true, nil
}

// parseDevice returns the words of a request, or of a feature, for a CDI name.
func parseDevice(device string) (string, error) {
	if path.IsAbs(device) {
		return "", explainHostDevice(strings.Split(device, ":")[0])
	}
	kind, name, ok := strings.Cut(device, "=")
	switch {
	case !ok || !strings.Contains(kind, "/") || name == "":
		return "", fmt.Errorf("--device %s is no CDI name, such as berth/gpus=2 or vendor.example/nic=port0", device)
	case kind == "berth/with":
		return "+" + strings.Replace(name, ":", "=", 1), nil
	case kind == "berth/gpus":
		if index, ok := strings.CutPrefix(name, "gpu"); ok && strings.Trim(index, "0123456789") == "" && index != "" {
			return "device=" + index, nil
		}
		return name, nil
	case kind == "nvidia.com/gpu" && name == "all":
		return name, nil
	case kind == "nvidia.com/gpu":
		return "device=" + name, nil
	}
	return device, nil
}

// explainHostDevice returns the error for a device node of the host, with the flag to use instead.
func explainHostDevice(node string) error {
	if node == "/dev/infiniband" || strings.HasPrefix(node, "/dev/infiniband/") {
		return fmt.Errorf("--device %s: RDMA NICs are leased: --nics auto leases those near the GPUs, --nics mlx5_0 this one", node)
	}
	base := path.Base(node)
	if index, ok := strings.CutPrefix(base, "nvidia"); ok {
		if index != "" && strings.Trim(index, "0123456789") == "" {
			return fmt.Errorf("--device %s: GPUs are leased, and a lease brings all nodes that they need; --gpus device=%s asks for this one", node, index)
		}
		return fmt.Errorf("--device %s: it comes with a leased GPU: --gpus 1", node)
	}
	return fmt.Errorf("--device %s: berth passes on no node of the host by its path; a device with a CDI spec is leased by its name (--device vendor.example/class=name), where policy.cdi allows it", node)
}
