package sim

import (
	"fmt"
	"slices"
)

// Profiles returns all simulated servers.
func Profiles() []Profile {
	return []Profile{dgxH100(), dgxA100MIG(), l40sPCIe(), oneGPU()}
}

// NVML's numbers for what a model is.
const (
	archAmpere, archAda, archHopper = 7, 8, 9
	brandNVIDIA                     = 14
)

func h100() *Model {
	return &Model{
		Name: "NVIDIA H100 80GB HBM3", Architecture: archHopper, Brand: brandNVIDIA, Compute: "9.0",
		MemoryMiB: 81559, PCIDevice: 0x2330, PCISubsystem: 0x16c110de, Multiproc: 132,
		Slicings: slicings(16, [4]uint64{9984, 20096, 40448, 81024}, [4]int{16, 32, 60, 132}),
	}
}

func a100() *Model {
	return &Model{
		Name: "NVIDIA A100-SXM4-80GB", Architecture: archAmpere, Brand: brandNVIDIA, Compute: "8.0",
		MemoryMiB: 81920, PCIDevice: 0x20b2, PCISubsystem: 0x147f10de, Multiproc: 108,
		Slicings: slicings(14, [4]uint64{9728, 19968, 40192, 81152}, [4]int{14, 28, 42, 98}),
	}
}

func l40s() *Model {
	return &Model{
		Name: "NVIDIA L40S", Architecture: archAda, Brand: brandNVIDIA, Compute: "8.9",
		MemoryMiB: 46068, PCIDevice: 0x26b9, PCISubsystem: 0x185110de, Multiproc: 142,
	}
}

// slicings is the table of an 80 GB model: memory and multiprocessors of one,
// two, three and seven slices.
func slicings(unit int, mem [4]uint64, sm [4]int) []Slicing {
	small := []int{0, 1, 2, 3, 4, 5, 6}
	return []Slicing{
		{"1g.10gb", 19, 0, 1, 7, sm[0], mem[0], [5]int{1, 0, 0, 0, 0}, 1, small},
		{"1g.10gb+me", 20, 7, 1, 1, sm[0], mem[0], [5]int{1, 1, 0, 1, 1}, 1, small},
		{"1g.20gb", 15, 9, 1, 4, sm[0], mem[1], [5]int{1, 1, 0, 0, 0}, 2, []int{0, 2, 4, 6}},
		{"2g.20gb", 14, 1, 2, 3, sm[1], mem[1], [5]int{2, 1, 0, 0, 0}, 2, []int{0, 2, 4}},
		{"3g.40gb", 9, 2, 3, 2, sm[2], mem[2], [5]int{3, 2, 0, 0, 0}, 4, []int{4, 0}},
		{"4g.40gb", 5, 3, 4, 1, 4 * unit, mem[2], [5]int{4, 2, 0, 0, 0}, 4, []int{0}},
		{"7g.80gb", 0, 4, 7, 1, sm[3], mem[3], [5]int{7, 5, 0, 1, 1}, 8, []int{0}},
	}
}

// pair is a GPU and a NIC below one PCIe switch (leaf), which hangs from a port
// of a larger one (top): functions that make the paths of both.
func pair(bridge, top, port, leaf string) (gpu, nic func(string) string) {
	trunk := fmt.Sprintf("%s %s:01.0 %s:00.0 %s %s:00.0", bridge, bridge, top, port, leaf)
	lower := next(leaf)
	return func(a string) string { return trunk + " " + lower + ":01.0 " + a },
		func(a string) string { return trunk + " " + lower + ":00.0 " + a }
}

func next(bus string) string {
	var n int
	if _, err := fmt.Sscanf(bus, "%x", &n); err != nil {
		return bus
	}
	return fmt.Sprintf("%02x", n+1)
}

// seat is the place of a pair on a board with eight of them: two below each of four host bridges,
// two of which are on each NUMA node.
type seat struct{ bridge, top, port, leaf, gpu, nic string }

func hca(name, path string, uverbs int) HCA {
	return HCA{
		Name: name, Path: path, Uverbs: uverbs, LinkLayer: "InfiniBand",
		State: "4: ACTIVE", Rate: "400 Gb/sec (4X NDR)", Netdev: "ib" + name[len("mlx5_"):],
	}
}

// spread gives each NVSwitch its number of a GPU's links.
func spread(links ...int) []int {
	var of []int
	for sw, n := range links {
		of = append(of, slices.Repeat([]int{sw}, n)...)
	}
	return of
}

func dgxH100() Profile {
	seats := []seat{
		{"15", "16", "17:00.0", "18", "1b:00.0", "1a:00.0"},
		{"15", "16", "17:01.0", "40", "43:00.0", "42:00.0"},
		{"4c", "4d", "4e:00.0", "4f", "52:00.0", "51:00.0"},
		{"4c", "4d", "4e:01.0", "5e", "61:00.0", "60:00.0"},
		{"97", "98", "99:00.0", "9a", "9d:00.0", "9c:00.0"},
		{"97", "98", "99:01.0", "c0", "c3:00.0", "c2:00.0"},
		{"cb", "cc", "cd:00.0", "ce", "d1:00.0", "d0:00.0"},
		{"cb", "cc", "cd:01.0", "dc", "df:00.0", "de:00.0"},
	}
	p := Profile{
		Name: "dgx-h100", Driver: "550.163.01", CUDA: 12040,
		Bridges: map[string]int{"15": 0, "4c": 0, "26": 0, "97": 1, "cb": 1, "a7": 1, "02": 0},
		Switches: []string{
			"02 02:01.0 03:00.0 04:00.0 05:00.0", "02 02:01.0 03:00.0 04:01.0 06:00.0",
			"02 02:01.0 03:00.0 04:02.0 07:00.0", "02 02:01.0 03:00.0 04:03.0 08:00.0",
		},
		Files: 16, Channels: 4, GDRCopy: true,
		Modules: []string{"mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core", "nvidia_peermem", "nvidia_fs", "gdrdrv"},
	}
	compute := []string{"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7", "mlx5_8", "mlx5_9"}
	for i, s := range seats {
		gpu, nic := pair(s.bridge, s.top, s.port, s.leaf)
		p.GPUs = append(p.GPUs, GPU{Model: h100(), Path: gpu(s.gpu), Minor: i, Links: spread(5, 4, 4, 5)})
		p.HCAs = append(p.HCAs, hca(compute[i], nic(s.nic), i))
	}
	p.HCAs = append(p.HCAs, storage("mlx5_1", "26 26:01.0 27:00.0", 8, "4: ACTIVE", "eth1"),
		storage("mlx5_2", "a7 a7:01.0 a8:00.0", 9, "1: DOWN", "eth2"))
	return p
}

// storage is an Ethernet adapter on a host bridge of its own: near no GPU.
func storage(name, path string, uverbs int, state, netdev string) HCA {
	return HCA{
		Name: name, Path: path, Uverbs: uverbs, LinkLayer: "Ethernet",
		State: state, Rate: "200 Gb/sec (4X HDR)", Netdev: netdev,
	}
}

func dgxA100MIG() Profile {
	seats := []seat{
		{"01", "02", "03:00.0", "04", "07:00.0", "06:00.0"},
		{"01", "02", "03:01.0", "0b", "0f:00.0", "0d:00.0"},
		{"40", "41", "42:00.0", "43", "47:00.0", "45:00.0"},
		{"40", "41", "42:01.0", "4a", "4e:00.0", "4c:00.0"},
		{"80", "81", "82:00.0", "83", "87:00.0", "85:00.0"},
		{"80", "81", "82:01.0", "8c", "90:00.0", "8e:00.0"},
		{"b0", "b1", "b2:00.0", "b3", "b7:00.0", "b5:00.0"},
		{"b0", "b1", "b2:01.0", "b9", "bd:00.0", "bb:00.0"},
	}
	minors := []int{2, 3, 0, 1, 6, 7, 4, 5}
	layouts := []string{
		"", "1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb", "3g.40gb,2g.20gb,1g.10gb",
		"1g.10gb+me,1g.10gb,1g.20gb,2g.20gb", "3g.40gb:1c:2c,3g.40gb", "on", "7g.80gb", "",
	}
	p := Profile{
		Name: "dgx-a100-mig", Driver: "550.163.01", CUDA: 12040,
		Bridges: map[string]int{"01": 0, "40": 0, "80": 1, "b0": 1, "c0": 1},
		Modules: []string{"mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core", "nvidia_peermem"},
	}
	for i := range 6 {
		p.Switches = append(p.Switches, fmt.Sprintf("c0 c0:01.1 c1:00.0 c2:%02x.0 %02x:00.0", i, 0xc4+i))
	}
	for i, s := range seats {
		gpu, nic := pair(s.bridge, s.top, s.port, s.leaf)
		p.GPUs = append(p.GPUs, GPU{
			Model: a100(), Path: gpu(s.gpu), Minor: minors[i], MIG: layouts[i], Links: spread(2, 2, 2, 2, 2, 2),
		})
		h := hca(fmt.Sprintf("mlx5_%d", i), nic(s.nic), i)
		h.Rate = "200 Gb/sec (4X HDR)"
		p.HCAs = append(p.HCAs, h)
	}
	return p
}

func l40sPCIe() Profile {
	return Profile{
		Name: "l40s-pcie", Driver: "550.163.01", CUDA: 12040,
		Bridges: map[string]int{"16": 0, "c9": 1, "2a": 0},
		GPUs: []GPU{
			{Model: l40s(), Path: "16 16:01.0 17:00.0", Minor: 0},
			{Model: l40s(), Path: "16 16:03.0 18:00.0", Minor: 1},
			{Model: l40s(), Path: "c9 c9:01.0 ca:00.0 cb:00.0 cc:00.0", Minor: 2},
			{Model: l40s(), Path: "c9 c9:01.0 ca:00.0 cb:01.0 cd:00.0", Minor: 3},
		},
		HCAs: []HCA{{
			Name: "mlx5_0", Path: "2a 2a:01.0 2b:00.0", LinkLayer: "Ethernet", State: "4: ACTIVE",
			Rate: "100 Gb/sec (4X EDR)", Netdev: "ens3f0np0",
		}},
		Modules: []string{"mlx5_core", "mlx5_ib", "ib_uverbs", "ib_core"},
	}
}

func oneGPU() Profile {
	return Profile{
		Name: "one-gpu", Driver: "550.163.01", CUDA: 12040,
		Bridges: map[string]int{"64": 0},
		GPUs:    []GPU{{Model: h100(), Path: "64 64:00.0 65:00.0", Minor: 0}},
	}
}

// boards returns a server with that many GPUs below four host bridges, without NICs. It is for
// benchmarks and for limits, and isn't among [Profiles].
func boards(name string, gpus int) Profile {
	p := Profile{
		Name: name, Driver: "550.163.01", CUDA: 12040,
		Bridges: map[string]int{"10": 0, "50": 0, "90": 1, "d0": 1, "02": 0},
		Switches: []string{
			"02 02:01.0 03:00.0 04:00.0 05:00.0", "02 02:01.0 03:00.0 04:01.0 06:00.0",
			"02 02:01.0 03:00.0 04:02.0 07:00.0", "02 02:01.0 03:00.0 04:03.0 08:00.0",
		},
	}
	for i := range gpus {
		bus, port := 0x10+0x40*(i/(gpus/4)), i%(gpus/4)+1
		path := fmt.Sprintf("%02x %02x:%02x.0 %02x:00.0", bus, bus, port, bus+port)
		p.GPUs = append(p.GPUs, GPU{Model: h100(), Path: path, Minor: i, Links: spread(5, 4, 4, 5)})
	}
	return p
}
