package berth

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-gpu/berth/cdi/foreign"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/gpu/request"
)

// ErrForbidden means that the admin's policy doesn't allow the request.
var ErrForbidden = errors.New("not allowed on this node")

// Policy has the admin's rules for requests and containers. It applies to every entry point.
type Policy struct {
	// Environment lets BERTH_GPUS in a container's environment be a request.
	// Off by default: an image's author writes that environment too.
	Environment bool `toml:"environment"`
	// PodmanAnnotation lets the annotation berth.gpus be a request under podman, which
	// takes it from images too. Off by default.
	PodmanAnnotation bool `toml:"podman_annotation"`
	// VisibleDevices is what NVIDIA_VISIBLE_DEVICES means in a container without another
	// request: "ignore" (or ""), "count", "honour", "refuse" (see entry.Visible). Images can
	// set the variable, and CUDA's images set it to "all".
	VisibleDevices string `toml:"visible_devices"`
	// NVIDIAIndices is what NVIDIA's CDI names nvidia.com/gpu=0 to N-1 mean together: "exact"
	// (or "") for those GPUs, "count" for any N GPUs.
	NVIDIAIndices string `toml:"nvidia_indices"`
	// Guard closes accelerators to containers without a lease. nil means on.
	Guard *bool `toml:"guard"`
	// Capabilities are the driver capabilities that an image may choose, in the words of
	// NVIDIA_DRIVER_CAPABILITIES. "" means all.
	Capabilities string `toml:"capabilities"`
	// Features are the names of the features that can be asked for: "gds", "imex".
	Features []string `toml:"features"`
	// NICs is how RDMA devices are leased: "shared" (or ""), to several at a time;
	// "exclusive", to one.
	NICs string `toml:"nics"`
	// InUse is what happens to a device that a process without a lease uses: with "refuse"
	// (or "") the device isn't leased until that process has ended, with "warn" it is leased
	// with a remark, and with "ignore" such processes aren't looked for.
	InUse string `toml:"in_use"`
	// Leftover is what happens to a process that still has a device open when the lease of that device has ended, because
	// the holder passed it a descriptor. With "report" (or "") the device is in use by a process without a lease: see
	// InUse. With "end" the process is killed. If InUse is "ignore", such processes aren't searched for, and "end" is an
	// error.
	Leftover string `toml:"leftover"`
	// Unstarted is how long a container with a lease may wait for its start before it is ended:
	// "1h" (or ""), "never".
	Unstarted string `toml:"unstarted"`
	// Show is what the broker shows to a user of the leases and waiting requests of others: "all";
	// "users" (or ""), who holds how many devices; "none", which devices are leased.
	Show string `toml:"show"`
	// CDI are the vendors and classes whose CDI devices can be asked for:
	// "vendor.example/nic", "vendor.example/*", "*".
	CDI []string `toml:"cdi"`
	// MemoryPolicy lets containers with GPUs set NUMA memory policy for their own memory,
	// even if the engine's system call filter denies it. nil means on.
	MemoryPolicy *bool `toml:"memory_policy"`
	// Shm is the size of /dev/shm of containers with GPUs if the engine sets its default of
	// 64 MiB: a number of bytes, or a part of the machine's memory (as "50%", which is also
	// the meaning of ""). "engine" keeps the engine's size.
	Shm string `toml:"shm"`
	// NCCLConf and NCCLTopology are files of the host for NCCL in containers with GPUs: its
	// configuration, and its topology file for a virtual machine. "" means none.
	NCCLConf     string `toml:"nccl_conf"`
	NCCLTopology string `toml:"nccl_topology"`
	// ExemptNamespaces are the Kubernetes namespaces whose pods are exempt from the guard,
	// under containerd's CRI plugin.
	ExemptNamespaces []string `toml:"exempt_namespaces"`
	// ExemptKey is the path of a file with a secret. A container whose annotation
	// berth.exempt has the secret is exempt from the guard. "" means that there is no secret.
	ExemptKey string `toml:"exempt_key"`
}

// Guarded reports whether accelerators are closed to containers without a lease.
func (p Policy) Guarded() bool { return p.Guard == nil || *p.Guard }

// check refuses values that cannot be used.
func (p Policy) check() error {
	if _, err := p.allowedCapabilities(); err != nil {
		return fmt.Errorf("policy.capabilities: %w", err)
	}
	if err := checkWord("nics", p.NICs, "shared", "exclusive"); err != nil {
		return err
	}
	if err := checkWord("in_use", p.InUse, "refuse", "warn", "ignore"); err != nil {
		return err
	}
	if err := checkWord("leftover", p.Leftover, "report", "end"); err != nil {
		return err
	}
	if p.Leftover == "end" && !p.ChecksInUse() {
		return errors.New(`policy.leftover: "end" needs processes to be looked for, and policy.in_use is "ignore"`)
	}
	if err := checkWord("show", p.Show, "all", "users", "none"); err != nil {
		return err
	}
	if _, err := p.unstartedLimit(); err != nil {
		return err
	}
	if err := checkWord("visible_devices", p.VisibleDevices, "ignore", "count", "honour", "refuse"); err != nil {
		return err
	}
	if err := checkWord("nvidia_indices", p.NVIDIAIndices, "exact", "count"); err != nil {
		return err
	}
	if err := p.checkNCCL(); err != nil {
		return err
	}
	for _, name := range p.Features {
		if !slices.Contains(gpu.FeatureNames(), name) {
			return fmt.Errorf("policy.features: unknown feature %q; known: %s", name, strings.Join(gpu.FeatureNames(), ", "))
		}
	}
	for _, pattern := range p.CDI {
		vendor, class, ok := strings.Cut(pattern, "/")
		if pattern != "*" && (!ok || vendor == "" || class == "") {
			return fmt.Errorf(`policy.cdi: %q isn't vendor/class, vendor/* or *`, pattern)
		}
	}
	return nil
}

func (p Policy) checkNCCL() error {
	if p.NCCLConf != "" && !filepath.IsAbs(p.NCCLConf) {
		return fmt.Errorf("policy.nccl_conf: %q is not an absolute path", p.NCCLConf)
	}
	if p.NCCLTopology != "" && !filepath.IsAbs(p.NCCLTopology) {
		return fmt.Errorf("policy.nccl_topology: %q is not an absolute path", p.NCCLTopology)
	}
	if p.Shm == "" || p.Shm == "engine" {
		return nil
	}
	number, part := strings.CutSuffix(p.Shm, "%")
	if n, err := strconv.ParseInt(number, 10, 62); err != nil || n <= 0 || part && n > 100 {
		return fmt.Errorf("policy.shm: %q isn't a number of bytes, a part like 50%%, or engine", p.Shm)
	}
	return nil
}

func checkWord(key, value string, words ...string) error {
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	return fmt.Errorf("policy.%s: unknown word %q; known: %s", key, value, strings.Join(words, ", "))
}

func (p Policy) allowedCapabilities() (gpu.Capabilities, error) {
	return gpu.ParseCapabilities(cmp.Or(p.Capabilities, "all"))
}

// checkRequest refuses a request that the policy doesn't allow. The error Is [ErrForbidden].
func (p Policy) checkRequest(r request.Request) error {
	for _, f := range r.Features() {
		if !slices.Contains(p.Features, f.Name()) {
			return fmt.Errorf("request %s: feature %s: %w: policy.features %s", r, f.Name(), ErrForbidden, listWords(p.Features))
		}
	}
	for _, name := range r.CDI() {
		if !foreign.Allowed(name, p.CDI) {
			return fmt.Errorf("request %s: CDI device %s: %w: policy.cdi %s", r, name, ErrForbidden, listWords(p.CDI))
		}
	}
	return nil
}

func listWords(words []string) string {
	if len(words) == 0 {
		return "lists none"
	}
	return "lists " + strings.Join(words, ", ")
}

// chooseCapabilities returns the driver capabilities that a container's environment chooses
// (NVIDIA_DRIVER_CAPABILITIES). "all" means all that the policy allows. A capability that
// the policy doesn't allow is an error that Is [ErrForbidden].
func (p Policy) chooseCapabilities(env []string) (gpu.Capabilities, error) {
	value := lookupVariable(env, "NVIDIA_DRIVER_CAPABILITIES")
	wanted, err := gpu.ParseCapabilities(value)
	if err != nil {
		return 0, fmt.Errorf("variable NVIDIA_DRIVER_CAPABILITIES: %w", err)
	}
	allowed, err := p.allowedCapabilities()
	if err != nil {
		return 0, fmt.Errorf("policy.capabilities: %w", err)
	}
	if strings.TrimSpace(value) == "" || slices.Contains(strings.Split(value, ","), "all") {
		return wanted & allowed, nil
	}
	if more := wanted &^ allowed; more != 0 {
		return 0, fmt.Errorf("variable NVIDIA_DRIVER_CAPABILITIES: %s: %w: policy.capabilities is %s", more, ErrForbidden, allowed)
	}
	return wanted, nil
}

// lookupVariable returns the value of an environment variable as runtimes do: the last entry
// counts.
func lookupVariable(env []string, name string) (value string) {
	for _, entry := range env {
		if v, found := strings.CutPrefix(entry, name+"="); found {
			value = v
		}
	}
	return value
}

// addNCCLFeatures adds to the features of a container with GPUs and RDMA adapters those
// that NCCL uses between the two, if the node has them and the policy allows them: GDRCopy,
// and IMEX if there is only one channel. With several channels the request must name one.
func (p Policy) addNCCLFeatures(inv gpu.Inventory, features []gpu.Feature, nics []gpu.Device) []gpu.Feature {
	if len(nics) == 0 {
		return features
	}
	all := slices.Clone(features)
	for _, name := range []string{gpu.FeatureGDRCopy, gpu.FeatureIMEX} {
		asked := slices.ContainsFunc(features, func(f gpu.Feature) bool { return f.Name() == name })
		if offers := inv.Offers(name); !asked && len(offers) == 1 && slices.Contains(p.Features, name) {
			all = append(all, offers[0])
		}
	}
	return all
}
