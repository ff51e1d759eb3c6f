package cdi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/cdi/edits"
	"github.com/berth-gpu/berth/cdi/shared"
	"github.com/berth-gpu/berth/cdi/view"
	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/smallfile"
)

// The kernel's lists of RDMA devices and of their device nodes, in /sys. Libraries read the
// first two. The nodes of the other lists (umadN, issmN) act on the whole fabric, so no
// container gets one.
const (
	classDevices = "class/infiniband"
	classVerbs   = "class/infiniband_verbs"
	rdmaCM       = "rdma_cm"
)

func otherClasses() []string { return []string{"class/infiniband_mad", "class/infiniband_cm"} }

// NICs makes the edits for RDMA adapters (HCAs): containers get uverbsN of the leased ones
// and rdma_cm, and lists in /sys/class that show the leased ones alone. The rest of /sys
// stays visible: NCCL reads the paths between GPUs and NICs there.
//
// In the kernel's shared mode of RDMA every container sees all adapters in /sys, whichever
// it may open. Libraries would try all of them, and ranks would end with different sets.
// So the lists are also hidden from containers with GPUs that lease no adapter.
type NICs struct {
	Host gpu.Host
	// State is the directory of what a reboot may forget. Views are below State/nics.
	State string
	// InUse reports whether a container may use one of these names: the id of the lease that a view is for, or in views of
	// older versions UUIDs of adapters. nil means that all are in use.
	InUse func(names []string) bool
	// DryRun makes no view: the edits say what would be bound.
	DryRun bool
}

// Edits returns the edits for leased adapters of the inventory. lease is the id of the lease, which
// has a view of its own. inSys is set if the container has a /sys. It
// is an error if an adapter of this name exists now and isn't the leased one.
func (n NICs) Edits(inv gpu.Inventory, leased []gpu.Device, lease string, inSys bool) (edits.Edits, error) {
	if len(leased) == 0 {
		return edits.Edits{}, nil
	}
	var e edits.Edits
	var all []hca
	for _, d := range leased {
		h, err := n.readHCA(inv, d)
		if err != nil {
			return edits.Edits{}, fmt.Errorf("device %s: %w", d.UUID, err)
		}
		all = append(all, h)
		e.AddNodes(describeHCAs(inv, d), h.node)
	}
	why := describeHCAs(inv, leased...)
	if cm, ok := n.connectionManagerNode(); ok {
		e.AddNodes(why, cm)
	}
	e.SetEnv("names the leased RDMA devices to NCCL", HCAVariable, HCANames(inv, leased))
	if !inSys {
		return e, nil
	}
	mounts, err := n.listViews(all, lease)
	if err != nil {
		return edits.Edits{}, fmt.Errorf("view of the RDMA devices: %w", err)
	}
	e.AddMounts(why+": what /sys shows of such devices", mounts...)
	e.MaskedPaths = n.maskedLists(otherClasses())
	return e, nil
}

// describeHCAs returns the reason of edits that come with leased adapters.
func describeHCAs(inv gpu.Inventory, leased ...gpu.Device) string {
	return "RDMA device " + strings.TrimPrefix(HCANames(inv, leased), "=")
}

// HiddenEdits returns the edits that hide all adapters from a container with GPUs.
func (n NICs) HiddenEdits() edits.Edits {
	return edits.Edits{MaskedPaths: n.maskedLists(slices.Concat([]string{classDevices, classVerbs}, otherClasses()))}
}

// Prune removes views that no container can run on.
func (n NICs) Prune() error { return n.viewStore().Prune() }

func (n NICs) viewStore() view.Store {
	return view.Store{Dir: path.Join(n.State, "nics"), InUse: n.InUse, DryRun: n.DryRun}
}

// maskedLists leaves out lists that the kernel doesn't have: a runtime can't make a mount
// point in /sys.
func (n NICs) maskedLists(lists []string) (paths []string) {
	for _, list := range lists {
		if isKind(n.Host.SysPath(list), unix.S_IFDIR) {
			paths = append(paths, path.Join("/sys", list))
		}
	}
	return paths
}

// hca is the current state of an adapter in sysfs.
type hca struct {
	name, uverbs  string
	device, verbs string // the links in the kernel's lists
	node          edits.Node
}

// readHCA checks that the adapter's name still belongs to the leased adapter: a driver that
// is loaded again may number adapters in another order.
func (n NICs) readHCA(inv gpu.Inventory, d gpu.Device) (h hca, err error) {
	nic, ok := inv.NIC(d)
	if !ok {
		return h, errors.New("the node doesn't have it any more")
	}
	h.name = nic.Name
	dir := n.Host.SysPath(classDevices, nic.Name)
	guid, err := smallfile.String(path.Join(dir, "node_guid"))
	if errors.Is(err, fs.ErrNotExist) {
		return h, fmt.Errorf("RDMA device %s is missing; where RDMA namespaces are exclusive, another container may have it", nic.Name)
	}
	if err != nil {
		return h, err
	}
	if h.device, err = os.Readlink(dir); err != nil {
		return h, err
	}
	isByGUID := d.UUID == "HCA-"+strings.ReplaceAll(guid, ":", "-")
	isByPlace := d.UUID == "HCA-"+nic.PCI && strings.Contains(h.device, "/"+nic.PCI+"/")
	isByName := nic.GUID == "" && nic.PCI == "" && d.UUID == "HCA-"+nic.Name
	if !isByGUID && !isByPlace && !isByName {
		return h, fmt.Errorf("RDMA device %s is another one now, %s: run berth discover", nic.Name, guid)
	}
	if h.uverbs, err = n.findVerbsNode(nic); err != nil {
		return h, err
	}
	if h.verbs, err = os.Readlink(n.Host.SysPath(classVerbs, h.uverbs)); err != nil {
		return h, err
	}
	h.node, err = n.nodeFromSysfs("infiniband/"+h.uverbs, n.Host.SysPath(classVerbs, h.uverbs, "dev"))
	return h, err
}

// findVerbsNode returns the current name of an adapter's verbs node. It checks the recorded name
// first.
func (n NICs) findVerbsNode(nic gpu.NIC) (string, error) {
	is := func(name string) bool {
		of, err := smallfile.String(n.Host.SysPath(classVerbs, name, "ibdev"))
		return err == nil && of == nic.Name
	}
	if nic.Uverbs != "" && is(nic.Uverbs) {
		return nic.Uverbs, nil
	}
	names, err := smallfile.Names(n.Host.SysPath(classVerbs))
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "uverbs") && is(name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("RDMA device %s has no uverbs node: modprobe ib_uverbs", nic.Name)
}

// connectionManagerNode returns the node of rdma_cm, which all adapters share. NCCL doesn't need
// it.
func (n NICs) connectionManagerNode() (edits.Node, bool) {
	e, err := n.nodeFromSysfs("infiniband/"+rdmaCM, n.Host.SysPath("class/misc", rdmaCM, "dev"))
	return e, err == nil
}

// nodeFromSysfs returns a device node with the numbers in a file of /sys.
func (n NICs) nodeFromSysfs(name, file string) (edits.Node, error) {
	text, err := smallfile.String(file)
	if err != nil {
		return edits.Node{}, err
	}
	first, second, _ := strings.Cut(text, ":")
	major, err := strconv.ParseUint(first, 10, 12)
	if err != nil {
		return edits.Node{}, fmt.Errorf("%s: %q is no device number", file, text)
	}
	minor, err := strconv.ParseUint(second, 10, 20)
	if err != nil {
		return edits.Node{}, fmt.Errorf("%s: %q is no device number", file, text)
	}
	return deviceNode(name, int64(major), int(minor)), nil
}

// listViews returns the bind mounts that replace the kernel's lists by lists with links to these
// adapters.
//
// Each lease has a view of its own: a container's root owns the files of its view, and a process that survives the container
// could delay everybody who opens one (fcntl F_SETLEASE).
func (n NICs) listViews(all []hca, lease string) ([]specs.Mount, error) {
	t := view.Tree{Links: map[string]string{}, Files: map[string]string{}}
	key := sha256.New()
	for _, h := range all {
		t.Links[path.Join(classDevices, h.name)] = h.device
		t.Links[path.Join(classVerbs, h.uverbs)] = h.verbs
		fmt.Fprintf(key, "%q %q %q %q\n", h.name, h.device, h.uverbs, h.verbs)
	}
	if abi, err := smallfile.String(n.Host.SysPath(classVerbs, "abi_version")); err == nil {
		t.Files[path.Join(classVerbs, "abi_version")] = abi + "\n"
	}
	fmt.Fprintf(key, "%q %q\n", lease, t.Files)
	tree, err := n.viewStore().Get(fmt.Sprintf("%x", key.Sum(nil)[:16]), []string{lease}, func() (view.Tree, error) { return t, nil })
	if err != nil {
		return nil, err
	}
	mounts := n.deviceTreeMounts()
	for _, list := range []string{classDevices, classVerbs} {
		mounts = append(mounts, bindView(path.Join(tree, list), path.Join("/sys", list)))
	}
	return mounts, nil
}

// deviceTreeMounts returns non-recursive binds of the host's device trees if Host.Sys isn't a sysfs:
// a container that mounts its own /sys would then not see the leased adapters. File systems mounted
// below the trees are left out, because they could be writable.
func (n NICs) deviceTreeMounts() (mounts []specs.Mount) {
	var st unix.Statfs_t
	if err := unix.Statfs(n.Host.SysPath(classDevices), &st); err != nil || st.Type == unix.SYSFS_MAGIC {
		return nil
	}
	for _, tree := range []string{"bus/pci", "class", "devices", "module"} {
		m := bindView(n.Host.SysPath(tree), path.Join("/sys", tree))
		m.Options[0] = "bind"
		mounts = append(mounts, m)
	}
	return mounts
}

// Paths of NCCL's configuration and, unless a variable names another, of its topology.
const (
	NCCLConf     = "/etc/nccl.conf"
	NCCLTopology = "/var/run/nvidia-topologyd/virtualTopology.xml"
)

// maxNCCLFile is far above the topology of the largest machines.
const maxNCCLFile = 4 << 20

// NCCLFiles returns binds of the admin's NCCL files at the paths where NCCL reads them; "" means no
// file. A missing file is an error. Containers get copies that lie in common. A dry run copies none,
// and binds the admin's files themselves.
func NCCLFiles(common shared.Dir, conf, topology string, dryRun bool) (e edits.Edits, err error) {
	for _, f := range []struct{ source, destination, why string }{
		{conf, NCCLConf, "policy.nccl_conf"},
		{topology, NCCLTopology, "policy.nccl_topology"},
	} {
		if f.source == "" {
			continue
		}
		if dryRun {
			e.AddMounts(f.why, bindView(f.source, f.destination))
			continue
		}
		content, err := ReadNCCLFile(f.source)
		if err != nil {
			return edits.Edits{}, err
		}
		file, err := boundFilesOf(common).addFile(content)
		if err != nil {
			return edits.Edits{}, fmt.Errorf("copy NCCL's file %s: %w", f.source, err)
		}
		e.AddMounts(f.why, bindView(common.PathForContainers(file), f.destination))
	}
	return e, nil
}

// ReadNCCLFile reads one of the admin's files for NCCL.
func ReadNCCLFile(file string) ([]byte, error) {
	if !isKind(file, unix.S_IFREG) {
		return nil, fmt.Errorf("NCCL's file %s isn't there, or is no regular file", file)
	}
	content, err := smallfile.Read(file, maxNCCLFile)
	if err != nil {
		return nil, fmt.Errorf("read NCCL's file: %w", err)
	}
	return content, nil
}
