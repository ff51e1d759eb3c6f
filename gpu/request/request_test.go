package request

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseRequest(t *testing.T) {
	tests := []struct {
		in   string
		want Request
		text string // canonical
	}{
		{"2", Request{kind: kindCount, count: 2}, "2"},
		{" 02 ", Request{kind: kindCount, count: 2}, "2"},
		{"count=2", Request{kind: kindCount, count: 2}, "2"},
		{"999", Request{kind: kindCount, count: 999}, "999"},
		{"all", Request{kind: kindAll}, "all"},
		{"ALL", Request{kind: kindAll}, "all"},
		{"count=all", Request{kind: kindAll}, "all"},
		{"device=all", Request{kind: kindAll}, "all"},
		{"h100", Request{kind: kindModel, word: "h100", count: 1}, "h100"},
		{"H100:1", Request{kind: kindModel, word: "h100", count: 1}, "h100"},
		{"h100:2", Request{kind: kindModel, word: "h100", count: 2}, "h100:2"},
		{"h100 : 2", Request{kind: kindModel, word: "h100", count: 2}, "h100:2"},
		{"device=h100:2", Request{kind: kindModel, word: "h100", count: 2}, "h100:2"},
		{"NVIDIA H100 80GB HBM3:2", Request{kind: kindModel, word: "nvidia-h100-80gb-hbm3", count: 2}, "nvidia-h100-80gb-hbm3:2"},
		{"1g.10gb", Request{kind: kindProfile, word: "1g.10gb", count: 1}, "1g.10gb"},
		{"1g.10gb:2", Request{kind: kindProfile, word: "1g.10gb", count: 2}, "1g.10gb:2"},
		{"mig-1g.10gb:2", Request{kind: kindProfile, word: "1g.10gb", count: 2}, "1g.10gb:2"},
		{"1c.3g.40gb", Request{kind: kindProfile, word: "1c.3g.40gb", count: 1}, "1c.3g.40gb"},
		{"1g.10gb+me.all", Request{kind: kindProfile, word: "1g.10gb+me.all", count: 1}, "1g.10gb+me.all"},
		{"0,3", Request{kind: kindIDs, word: "0,3"}, "device=0,3"},
		{"3, 0", Request{kind: kindIDs, word: "3,0"}, "device=3,0"},
		{"device=0", Request{kind: kindIDs, word: "0"}, "device=0"},
		{"device=0,3", Request{kind: kindIDs, word: "0,3"}, "device=0,3"},
		{`"device=0,1"`, Request{kind: kindIDs, word: "0,1"}, "device=0,1"},
		{`'"device=0,1"'`, Request{kind: kindIDs, word: "0,1"}, "device=0,1"},
		{"0:1", Request{kind: kindIDs, word: "0:1"}, "device=0:1"},
		{"GPU-8F4A:1,2", Request{kind: kindIDs, word: "GPU-8f4a:1,2"}, "device=GPU-8f4a:1,2"},
		{"GPU-8F4A,1", Request{kind: kindIDs, word: "GPU-8f4a,1"}, "device=GPU-8f4a,1"},
		{"mig-03c1", Request{kind: kindIDs, word: "MIG-03c1"}, "device=MIG-03c1"},
		{"1B:00.0", Request{kind: kindIDs, word: "0000:1b:00.0"}, "device=0000:1b:00.0"},
		{"00000000:1B:00.0", Request{kind: kindIDs, word: "0000:1b:00.0"}, "device=0000:1b:00.0"},
		{"10000:1b:00.0", Request{kind: kindIDs, word: "10000:1b:00.0"}, "device=10000:1b:00.0"},
		{"LOST-0000:1b:00.0", Request{kind: kindIDs, word: "0000:1b:00.0"}, "device=0000:1b:00.0"},
		{"2,mem>=40G", Request{kind: kindCount, count: 2, mem: [2]memory{{">=", 40, "G"}}}, "2,mem>=40G"},
		{"2, MEM >= 40 GB", Request{kind: kindCount, count: 2, mem: [2]memory{{">=", 40, "G"}}}, "2,mem>=40G"},
		{"mem>40gib", Request{kind: kindCount, count: 1, mem: [2]memory{{">", 40, "Gi"}}}, "1,mem>40Gi"},
		{"all,memory=80000M", Request{kind: kindAll, mem: [2]memory{{"=", 80000, "M"}}}, "all,mem=80000M"},
		{
			"h100,mem>=40G,mem<80G",
			Request{kind: kindModel, word: "h100", count: 1, mem: [2]memory{{"<", 80, "G"}, {">=", 40, "G"}}},
			"h100,mem<80G,mem>=40G",
		},
		{"2,mem>=40G,mem>=40g", Request{kind: kindCount, count: 2, mem: [2]memory{{">=", 40, "G"}}}, "2,mem>=40G"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := Parse(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("Parse(%q) = %#v, want %#v", tt.in, got, tt.want)
			}
			if got.String() != tt.text {
				t.Errorf("String() = %q, want %q", got, tt.text)
			}
			if again, err := Parse(tt.text); err != nil || again != got {
				t.Errorf("Parse(%q) = %#v, %v, want %#v", tt.text, again, err, got)
			}
		})
	}
}

func TestParseRequestRefuses(t *testing.T) {
	const forms = "known are a count"
	tests := []struct {
		in   string
		none bool
		says string
	}{
		{in: "", none: true, says: "asks for no GPU"},
		{in: `""`, none: true, says: "asks for no GPU"},
		{in: "none", none: true, says: "asks for no GPU"},
		{in: "void", none: true, says: "asks for no GPU"},
		{in: "0", none: true, says: `"device=0"`},
		{in: "0,mem>=40G", none: true, says: `"device=0"`},
		{in: "h100:0", none: true, says: "asks for no GPU"},
		{in: "-1", says: forms},
		{in: "1.5", says: forms},
		{in: "?", says: forms},
		{in: "../../etc/passwd", says: "name of a CDI device"},
		{in: "1000", says: "needs a letter"},
		{in: "4090:2", says: "needs a letter"},
		{in: "device=1000", says: "needs a letter"},
		{in: "99999999999999999999", says: "needs a letter"},
		{in: "h100:x", says: `"x" isn't a count, as in h100:2`},
		{in: "h100:", says: `the count after ":" is missing, as in h100:2`},
		{in: ":2", says: `the model before ":" is missing, as in h100:2; 2 alone is of any model`},
		{in: "2:h100", says: "the model comes before the count, as in h100:2"},
		{in: "gpu:h100:2", says: `Slurm's "gpu:" is left out: "h100:2"`},
		{in: "gpu:2", says: `Slurm's "gpu:" is left out: "2"`},
		{in: "h100:2:3", says: `"2:3" isn't a count`},
		{in: "all:2", says: `"all" is no model`},
		{in: "gpu 0000", says: `"gpu-0000" is no model`},
		{in: "mem", says: `"mem" is no model`},
		{in: "0,0", says: "0 is named twice"},
		{in: "0,00", says: "0 is named twice"},
		{in: "1b:00.0,0000:1B:00.0", says: "0000:1b:00.0 is named twice"},
		{in: "0,h100", says: `"h100" isn't an index`},
		{in: "0,", says: `"" isn't an index`},
		{in: "h100,2", says: `"2" isn't a condition`},
		{in: "h100,l40s", says: `"l40s" isn't a condition`},
		{in: "device=0,mem>=40G", says: "goes with a count"},
		{in: "2,cpu>=4", says: `unknown condition "cpu"`},
		{in: "capabilities=gpu", says: `unknown condition "capabilities"`},
		{in: "2,mem=>40G", says: `unknown comparison "=>"`},
		{in: "2,mem>=40", says: "needs a unit"},
		{in: "2,mem>=G", says: "isn't an amount"},
		{in: "2,mem>=40X", says: "needs a unit"},
		{in: "2,mem>=123456789G", says: "isn't an amount"},
		{in: "2,mem>1G,mem<9G,mem=4G", says: "more than 2 conditions"},
		{in: "0000:1b:00.8", says: "needs a letter"},
		{in: "1b:00.0:0", says: "isn't a count"},
		{in: "h100(2)", says: forms},
		{in: "h100\nx", says: "character"},
		{in: "h100\x00", says: "character"},
		{in: "\u212a40", says: "character"}, // the Kelvin sign, which lower-cases to k
		{in: strings.Repeat("x", 65), says: "at most 64 bytes"},
		{in: strings.Repeat("0,", 5000), says: "longer than 8192"},
		{in: strings.Repeat("a,", 300), says: "more than 256"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := Parse(tt.in)
			if err == nil {
				t.Fatalf("Parse(%q) = %q, want an error", tt.in, got)
			}
			if !errors.Is(err, ErrBad) || errors.Is(err, ErrNone) != tt.none {
				t.Errorf("error %q is ErrBad %v, ErrNone %v", err, errors.Is(err, ErrBad), errors.Is(err, ErrNone))
			}
			if got != (Request{}) {
				t.Errorf("request %#v beside an error", got)
			}
			if !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 400 || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one short line with %q", err, tt.says)
			}
		})
	}
}

func TestRequestAccessors(t *testing.T) {
	tests := []struct {
		in             string
		count          int
		all            bool
		ids            string
		model, profile string
	}{
		{in: "2", count: 2},
		{in: "all", all: true},
		{in: "h100:2", count: 2, model: "h100"},
		{in: "1g.10gb", count: 1, profile: "1g.10gb"},
		{in: "0,0:1,GPU-8f", count: 3, ids: "0 0:1 GPU-8f"},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			r := mustParse(t, tt.in)
			if r.IsZero() || r.Count() != tt.count || r.IsAll() != tt.all || strings.Join(r.IDs(), " ") != tt.ids ||
				r.Model() != tt.model || r.Profile() != tt.profile {
				t.Errorf("got %v %v %v %q %q, want %+v", r.Count(), r.IsAll(), r.IDs(), r.Model(), r.Profile(), tt)
			}
		})
	}
	if r := (Request{}); !r.IsZero() || r.String() != "" {
		t.Errorf("zero request: %v %q", r.IsZero(), r)
	}
}

// TestMemoryClasses compares the rule with the sizes that NVML reports for cards as they are sold.
func TestMemoryClasses(t *testing.T) {
	cards := []struct {
		name string
		mib  uint64
		size uint64 // as sold, in G
	}{
		{"T4", 15109, 16},
		{"T4, newer driver", 15360, 16},
		{"A10G", 22731, 24},
		{"L4", 23034, 24},
		{"A100 40GB", 40960, 40},
		{"A100 40GB, older driver", 40536, 40},
		{"A6000 with ECC", 45634, 48},
		{"L40S", 46068, 48},
		{"H100 80GB", 81559, 80},
		{"A100 80GB", 81920, 80},
		{"H100 NVL", 95830, 94},
		{"H200", 143771, 141},
		{"1g.5gb", 4864, 5},
		{"1g.10gb", 9856, 10},
		{"3g.40gb", 40448, 40},
	}
	for _, c := range cards {
		t.Run(c.name, func(t *testing.T) {
			bytes := c.mib << 20
			for op, want := range map[string]bool{"=": true, ">=": true, "<=": true, ">": false, "<": false} {
				if got := (memory{op, c.size, "G"}).isMetBy(bytes); got != want {
					t.Errorf("mem%s%dG is %v", op, c.size, got)
				}
			}
			if !(memory{">", c.size / 2, "G"}).isMetBy(bytes) || !(memory{"<", c.size * 2, "G"}).isMetBy(bytes) ||
				(memory{">=", c.size * 2, "G"}).isMetBy(bytes) || (memory{"<=", c.size / 2, "G"}).isMetBy(bytes) {
				t.Error("half or twice the size isn't told apart")
			}
		})
	}
}

func TestMemoryIsTrichotomous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Uint64Range(0, 9_999_999).Draw(t, "number")
		unit := rapid.SampledFrom([]string{"K", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"}).Draw(t, "unit")
		bytes := rapid.Uint64().Draw(t, "bytes")
		fits := func(op string) bool { return memory{op, number, unit}.isMetBy(bytes) }
		least, most := memory{"=", number, unit}.byteBounds()
		if least > most {
			t.Fatalf("bounds %d..%d", least, most)
		}
		if fits(">=") == fits("<") || fits("<=") == fits(">") || fits("=") != (fits("<=") && fits(">=")) {
			t.Fatal("<, = and > don't exclude each other")
		}
	})
}

// genRequest draws a text of the language, not always in canonical form.
func genRequest() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		parts := rapid.SliceOfN(genPart(), 1, 3).Draw(t, "parts")
		return strings.Join(parts, rapid.SampledFrom([]string{";", " ; "}).Draw(t, "semicolon"))
	})
}

func genPart() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		number := rapid.StringMatching(`[0-9]{1,3}`)
		id := rapid.OneOf(
			number,
			rapid.StringMatching(`[0-9]{1,2}:[0-9]`),
			rapid.StringMatching(`(GPU|gpu|MIG)-[0-9a-f]{1,8}(-[0-9a-fA-F]{4}){0,4}`),
			rapid.StringMatching(`(0000[0-9a-f]{4}:|[0-9a-f]{4}:|)[0-9A-F]{2}:[0-9a-f]{2}\.[0-7]`),
		)
		if rapid.Bool().Draw(t, "list") {
			ids := rapid.SliceOfN(id, 1, 5).Draw(t, "ids")
			ids = append(ids, genFeatures(t)...)
			return rapid.SampledFrom([]string{"", "device=", `"`}).Draw(t, "prefix") + strings.Join(ids, rapid.SampledFrom([]string{",", ", "}).Draw(t, "comma"))
		}
		what := rapid.OneOf(number, rapid.Just("all"), rapid.StringMatching(`[a-zA-Z][a-z0-9_ -]{0,9}(:[0-9]{1,3})?`),
			rapid.StringMatching(`[1-7]g\.[0-9]{1,3}gb(\+me)?(:[0-9]{1,2})?`)).Draw(t, "what")
		for range rapid.IntRange(0, 3).Draw(t, "conditions") {
			what += rapid.StringMatching(`, ?mem ?(>=|>|<=|<|=)[0-9]{1,8} ?[KMGTkmgt]i?[bB]?`).Draw(t, "condition")
		}
		return strings.Join(append([]string{what}, genFeatures(t)...), ",")
	})
}

func genFeatures(t *rapid.T) []string {
	word := rapid.OneOf(rapid.SampledFrom([]string{"+gds", "+GDRcopy", "+ nvswitch", "+fabricmanager"}),
		rapid.StringMatching(`\+imex ?= ?[0-9]{1,3}(-[0-9]{3,4})?`))
	nics := rapid.StringMatching(`(nics|NIC) ?= ?(auto|none|[0-9]{1,3}|[a-z]{1,4}[0-9]_[0-9]{1,2}( ?\+ ?mlx5_[0-9]{1,2}){0,2})`)
	return append(rapid.SliceOfN(word, 0, 3).Draw(t, "features"), rapid.SliceOfN(nics, 0, 1).Draw(t, "nics")...)
}

func TestRequestRoundTrip(t *testing.T) {
	read := 0
	rapid.Check(t, func(t *rapid.T) {
		r, err := Parse(genRequest().Draw(t, "text"))
		if err != nil {
			return
		}
		read++
		if again, err := Parse(r.String()); err != nil || again != r {
			t.Fatalf("%q: %#v, %v, want %#v", r, again, err, r)
		}
	})
	if read == 0 {
		t.Error("no text could be read: the test shows nothing")
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"2", "all", "h100:2", "1g.10gb:2", "0,3", `'"device=0,1"'`, "GPU-8f4a", "MIG-03c1", "0:1", "GPU-8f4a:1", "1b:00.0",
		"2,mem>=40G", "h100,mem<80Gi,mem>1K", "none", "count=2", "\u212a40", "=", "mem", ":", ",", "device=device=1",
		"GPU 00000", "mig 1g.5gb", "h100 -_:2", "2,+gds,+imex=0-3", "+imex=1", "0,+gdrcopy,3", "-+a", "1,v.example/c=Name", "v/c=a,v/c=b",
		"2,nics=auto", "nics=mlx5_0+mlx5_1", "nic=2,v/c=a", "1,nics=none", "1;2,nics=1;1g.5gb", "device=0;all", ";", "1;v/c=a,nics=0", "1b:00.0;nics=1+",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := Parse(s)
		if err != nil {
			if !errors.Is(err, ErrBad) || strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 800 {
				t.Fatalf("error of %q: %q", s, err)
			}
			return
		}
		text := r.String()
		if again, err := Parse(text); err != nil || again != r || again.String() != text {
			t.Fatalf("%q → %#v → %q → %#v, %v", s, r, text, again, err)
		}
	})
}

func mustParse(t testing.TB, s string) Request {
	t.Helper()
	r, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
