package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// small is a virtual machine with a GPU and a NIC below one switch, and a GPU alone.
const small = `<!-- two
     lines -->
<system version="1">
  <cpu numaid="0" affinity="00000000,00ffffff" arch="x86_64">
    <pci busid="FFFF:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width='16'>
      <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0002:00:00.0" count="12" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0101:00:00.0" class="0x020700" link_speed="" link_width="0">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.000000" guid="0xa1" maxconn="131072" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="-1" >
    <pci busid="0002:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16" />
    <other><than known="x"/></other>
  </cpu>
</system>
`

// TestAddressesAlone: the file that AWS ships for its g5.48xlarge has addresses of GPUs and nothing
// else.
func TestAddressesAlone(t *testing.T) {
	got, err := Parse([]byte(`<system version="1">
  <cpu numaid="0">
    <pci busid="0000:00:16.0"/>
    <pci busid="0000:00:17.0"/>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:00:1a.0"></pci>
  </cpu>
</system>
`))
	want := System{CPUs: []CPU{
		{NUMA: 0, Devices: []Device{{Address: "0000:00:16.0"}, {Address: "0000:00:17.0"}}},
		{NUMA: 1, Devices: []Device{{Address: "0000:00:1a.0"}}},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Parse: %v\n%s", err, diff)
	}
}

// TestBridges: NCCL reads class and link of a bridge from /sys, as those of a GPU, where the file has none; the file of AWS
// for its first p5.48xlarge had none. A dump of NCCL's own has an empty width where /sys has no bridge.
func TestBridges(t *testing.T) {
	got, err := Parse([]byte(`<system version="1">
  <cpu numaid="0">
    <pci busid="0000:45:00.0">
      <pci busid="0000:4f:00.0" link_speed="32 GT/s PCIe/s" link_width="16"/>
    </pci>
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="" link_width="">
      <pci busid="0000:50:00.0"/>
    </pci>
  </cpu>
</system>
`))
	want := System{CPUs: []CPU{{Devices: []Device{
		{Address: "0000:45:00.0", Devices: []Device{{Address: "0000:4f:00.0"}}},
		{Address: "ffff:ff:01.0", Class: "0x060400", Devices: []Device{{Address: "0000:50:00.0"}}},
	}}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Parse: %v\n%s", err, diff)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	want := System{CPUs: []CPU{
		{Devices: []Device{{Address: "ffff:ff:01.0", Class: "0x060400", Devices: []Device{
			{Address: "0001:00:00.0", Class: "0x030200"}, {Address: "0101:00:00.0", Class: "0x020700"},
		}}}},
		{NUMA: -1, Devices: []Device{{Address: "0002:00:00.0", Class: "0x030200"}}},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for name, text := range map[string]string{
		"with carriage returns": strings.ReplaceAll(small, "\n", "\r\n"),
		"a value over lines":    strings.Replace(small, "x86_64", "x86\n64", 1),
		"two spaces":            strings.Replace(small, " affinity", "  affinity", 1),
		"a name without value":  strings.Replace(small, " affinity", " x affinity", 1),
		"an attribute twice":    strings.Replace(small, " affinity", ` numaid="zero" affinity`, 1),
	} {
		if same, err := Parse([]byte(text)); err != nil || cmp.Diff(got, same) != "" {
			t.Errorf("%s: %+v, %v", name, same, err)
		}
	}
}

func TestBroken(t *testing.T) {
	swap := func(old, text string) string {
		if strings.Count(small, old) < 1 {
			t.Fatalf("there is no %q", old)
		}
		return strings.Replace(small, old, text, 1)
	}
	for _, tt := range []struct {
		name, text string
		line       int
		reason     string
	}{
		{"header", `<?xml version="1.0"?>` + "\n" + small, 1, "an XML header"},
		{"DOCTYPE", "<!DOCTYPE system>\n" + small, 1, "a DOCTYPE"},
		{"tab", swap("  <cpu numaid=\"0\"", "\t<cpu numaid=\"0\""), 4, "a tab: NCCL takes spaces"},
		{"tab in a tag", swap(` affinity`, "\taffinity"), 4, "a tab in <cpu>"},
		{"tab behind a tag's name", swap(`<cpu numaid="0"`, "<cpu\tnumaid=\"0\""), 4, "a tab in <cpu>"},
		{"new line in a tag", swap(` affinity`, "\n affinity"), 4, "<cpu> goes on in the next line"},
		{"new line behind a space", swap(` affinity`, " \naffinity"), 4, "<cpu> goes on in the next line"},
		{"text", swap(`<gpu dev`, `GPU <gpu dev`), 7, "text between tags"},
		{"text at the end", small + "end", 23, "text between tags"},
		{"many spaces", swap(` affinity`, strings.Repeat(" ", 16)+"affinity"), 4, "<cpu> has more than 16 attributes"},
		{"a sign alone", swap(` affinity`, ` ="x" affinity`), 4, `<cpu> has a '=' where an attribute`},
		{"no quotes", swap(`count="12"`, `count=12`), 8, "count of <nvlink> has no value in quotes"},
		{"spaces at the sign", swap(`count="12"`, `count = "12"`), 8, "<nvlink> has a '=' where an attribute"},
		{"no space", swap(`numaid="0" affinity`, `numaid="0"affinity`), 4, `<cpu> has a 'a' where a space`},
		{"value without an end", swap(`tclass="0x030200"/>`, `tclass='0x030200/>`), 8, "tclass has "},
		{"long value", swap("x86_64", strings.Repeat("x", 254)), 4, "arch has more than 253 bytes"},
		{"long name", swap("affinity", strings.Repeat("x", 254)), 4, "a name of more than 253 bytes"},
		{"many attributes", swap(` affinity`, fmt.Sprintf("%s affinity", attrs(14))), 4, "<cpu> has more than 16 attributes"},
		{"other close", swap(`</gpu>`, `</cpu>`), 9, "</cpu> closes <gpu> of line 7"},
		{"close of nothing", small + "</system>", 23, "</system> closes nothing"},
		{"close with a space", swap(`</gpu>`, `</gpu >`), 9, "a closing tag is </NAME>"},
		{"never closed", strings.TrimSuffix(small, "</system>\n"), 3, "<system> is never closed"},
		{"ends in a tag", strings.TrimSuffix(small, ">\n"), 22, "a closing tag is </NAME>"},
		{"ends in an opening tag", "<system version=\"1\"", 1, "the file ends within <system>"},
		{"ends in an attribute", "<system version", 1, "the file ends within <system>"},
		{"comment", "<!-- \n" + small[4:strings.Index(small, "-->")], 1, "a comment is never closed"},
		{"no name", swap("<gpu dev", "< gpu dev"), 7, "a tag without a name"},
		{"no version", swap(` version="1"`, ""), 3, "<system> has no version"},
		{"RCCL's version", swap(`version="1"`, `version="2"`), 3, "version of <system> is 2: NCCL knows 1 (2 is RCCL's)"},
		{"no numaid", swap(`numaid="0" `, ""), 4, "<cpu> has no numaid"},
		{"numaid in words", swap(`numaid="0"`, `numaid="zero"`), 4, `numaid of <cpu> is no number: "zero"`},
		{"no busid", swap(`busid="0001:00:00.0" `, ""), 6, "<pci> has no busid"},
		{"no address", swap(`"0001:00:00.0"`, `"1:00:00.0"`), 6, "is no PCI address"},
		{"bridge without class", swap(` class="0x060400"`, ""), 5, "<pci> has no class"},
		{"width in words", swap(`link_width="0"`, `link_width="wide"`), 11, `link_width of <pci> is no number: "wide"`},
		{"no count", swap(`count="12" `, ""), 8, "<nvlink> has no count"},
		{"no target", swap(`target="0002:00:00.0" `, ""), 8, "<nvlink> has no target"},
		{"rank in words", swap(`rank="0"`, `rank="first"`), 7, "rank of <gpu> is no number"},
		{"port in words", swap(`port="1"`, `port="one"`), 13, "port of <net> is no number"},
		{"nothing", "\n", 1, "there is no <system>"},
		{"no CPU", `<system version="1"></system>`, 1, "<system> has no <cpu>"},
		{"two systems", small + small, 25, "a second <system>"},
		{"many elements", swap("<other>", strings.Repeat(`<pci busid="0003:00:00.0" class="0x02" link_speed="" link_width="1"/>`, 256)+"<other>"), 20, "more than 256 elements"},
		{"deep", strings.Repeat("<a>", 70), 1, "more than 64 elements within each other"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.text))
			var e *Error
			if !errors.As(err, &e) || e.Line != tt.line || !strings.Contains(e.Reason, tt.reason) {
				t.Errorf("%v, want line %d: %s", err, tt.line, tt.reason)
			}
		})
	}
}

func attrs(n int) (text string) {
	for i := range n {
		text += fmt.Sprintf(` a%d=""`, i)
	}
	return text
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topo.xml")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("<a>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || err.Error() != "NCCL's topology "+path+": line 1: <a> is never closed" {
		t.Errorf("error %v", err)
	}
}

// FuzzParse: the line of an error exists in the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("<a b='c'><!-- --></a>"))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, err := Parse(text)
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Line > 1+strings.Count(string(text), "\n")) {
			t.Errorf("%v", err)
		}
	})
}
