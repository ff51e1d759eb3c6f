package sim

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// rdma adds what all adapters have together.
func rdma(t tree) {
	t.file("class/infiniband_verbs/abi_version", "6")
	t.file("class/infiniband_mad/abi_version", "5")
	t.file("class/misc/rdma_cm/dev", fmt.Sprintf("%d:%d", majorMisc, rdmaMinor))
	t.file("class/misc/rdma_cm/abi_version", "4")
	t.file("module/ib_core/parameters/netns_mode", "Y")
}

// GUID of the adapter, as sysfs has it.
func (h HCA) GUID() string { return fmt.Sprintf("b83f:d203:00%02x:%04x", h.Uverbs, 0xa0b0+h.Uverbs) }

// tree adds the RDMA side of an adapter whose function is at dir.
func (h HCA) tree(t tree, dir string) {
	guid := h.GUID()
	ib := dir + "/infiniband/" + h.Name
	for name, value := range map[string]string{
		"node_guid": guid, "sys_image_guid": guid, "node_type": "1: CA", "node_desc": h.Name, "fw_ver": "28.39.2048",
		"board_id": "MT_0000000838", "hca_type": "MT4129", "hw_rev": "0",
		"ports/1/state": h.State, "ports/1/phys_state": physical(h.State), "ports/1/link_layer": h.LinkLayer,
		"ports/1/rate": h.Rate, "ports/1/lid": "0x1", "ports/1/sm_lid": "0x1", "ports/1/lid_mask_count": "0",
		"ports/1/cap_mask": "0xa751e848", "ports/1/pkeys/0": "0xffff",
	} {
		t.file(ib+"/"+name, value)
	}
	h.gids(t, ib+"/ports/1/", guid)
	t.link(ib+"/device", dir)
	t.link(ib+"/subsystem", "class/infiniband")
	t.link("class/infiniband/"+h.Name, ib)
	h.nodes(t, dir)
	net := dir + "/net/" + h.Netdev
	t.file(net+"/operstate", map[bool]string{true: "up", false: "down"}[strings.HasPrefix(h.State, "4")])
	t.file(net+"/address", fmt.Sprintf("b8:3f:d2:03:00:%02x", h.Uverbs))
	t.file(net+"/dev_port", "0")
	t.file(net+"/mtu", map[bool]string{true: "9000", false: "4092"}[h.LinkLayer == "Ethernet"])
	t.link(net+"/device", dir)
}

// gids adds the port's addresses: InfiniBand has one, RoCE two for each address of its
// network interface, of which an active port has its own and an IPv4 one.
func (h HCA) gids(t tree, port, guid string) {
	all := []string{"IB/RoCE v1 fe80:0000:0000:0000:" + guid}
	if h.LinkLayer == "Ethernet" {
		all = append(all, "RoCE v2 fe80:0000:0000:0000:"+guid)
		if strings.HasPrefix(h.State, "4") {
			ip := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:0a0a:%02x01", h.Uverbs)
			all = append(all, "IB/RoCE v1 "+ip, "RoCE v2 "+ip)
		}
	}
	for i, g := range all {
		at := strings.LastIndexByte(g, ' ')
		t.file(fmt.Sprintf("%sgids/%d", port, i), g[at+1:])
		t.file(fmt.Sprintf("%sgid_attrs/types/%d", port, i), g[:at])
		t.file(fmt.Sprintf("%sgid_attrs/ndevs/%d", port, i), h.Netdev)
	}
}

// nodes adds the adapter's character devices.
func (h HCA) nodes(t tree, dir string) {
	for _, d := range []struct {
		class, name string
		minor       int
	}{
		{"infiniband_verbs", fmt.Sprintf("uverbs%d", h.Uverbs), 192 + h.Uverbs},
		{"infiniband_mad", fmt.Sprintf("umad%d", h.Uverbs), h.Uverbs},
		{"infiniband_mad", fmt.Sprintf("issm%d", h.Uverbs), 64 + h.Uverbs},
	} {
		at := dir + "/" + d.class + "/" + d.name
		t.file(at+"/ibdev", h.Name)
		t.file(at+"/dev", fmt.Sprintf("%d:%d", majorInfiniBand, d.minor))
		t.file(at+"/abi_version", "1")
		if d.class == "infiniband_mad" {
			t.file(at+"/port", "1")
		}
		t.link(at+"/device", dir)
		t.link("class/"+d.class+"/"+d.name, at)
	}
}

func physical(state string) string {
	if strings.HasPrefix(state, "4") {
		return "5: LinkUp"
	}
	return "3: Disabled"
}

// bridgeConfig is the configuration space of a PCIe bridge, of which there is little but
// its access control, which is off. Source: the PCI Express Base Specification,
// "ACS Extended Capability".
func bridgeConfig() string {
	const extended, id, version, allOf = 0x100, 0x000d, 1, 0x5f
	space := make([]byte, 4096)
	binary.LittleEndian.PutUint32(space[extended:], id|version<<16)
	binary.LittleEndian.PutUint16(space[extended+4:], allOf)
	return string(space)
}
