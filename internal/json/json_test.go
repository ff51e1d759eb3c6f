package json

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// strange is a document with everything that JSON has.
const strange = `{"ociVersion":"1.0.2","num":-12.5e+3,"deep":[[{"x":null,"y":[true,false]}]],"é\u00e9":"\ud83d\ude00 \"\\ \/","":0}`

type word string

type small struct {
	A int     `json:"a"`
	B *string `json:"b,omitempty"`
}

// known has all that the codec reads and writes itself.
type known struct {
	Text     string            `json:"text"`
	Word     word              `json:"word,omitempty"`
	Bool     bool              `json:"bool,omitempty"`
	Int      int               `json:"int"`
	Int8     int8              `json:"int8,omitempty"`
	Unsigned uint32            `json:"unsigned,omitempty"`
	Big      uint64            `json:"big,omitempty"`
	Pointer  *int64            `json:"pointer,omitempty"`
	Always   *bool             `json:"always"`
	Small    small             `json:"small"`
	Inner    *small            `json:"inner,omitempty"`
	List     []small           `json:"list,omitempty"`
	Words    []word            `json:"words"`
	Map      map[string]string `json:"map,omitempty"`
	Maps     map[string]small  `json:"maps"`
	Time     time.Time         `json:"time"`
	NoTag    string
	Not      string `json:"-"`
}

func filledKnown() known {
	n, yes, b := int64(-5), true, "b"
	return known{
		Text: `<a & "b">` + "\u2028\x7fé\xff", Word: "w", Bool: true, Int: -1, Int8: 127, Unsigned: 1 << 31, Big: 1<<64 - 1, Pointer: &n, Always: &yes,
		Small: small{A: 1}, Inner: &small{A: 2, B: &b}, List: []small{{A: 3}, {B: &b}}, Words: []word{"x", "y"},
		Map: map[string]string{"b": "1", "a": "<"}, Maps: map[string]small{"m": {A: 4}}, Time: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), NoTag: "n",
	}
}

// Plain values are not left to encoding/json.
func TestPlainValues(t *testing.T) {
	for _, v := range []known{{}, filledKnown(), {Words: []word{}, Maps: map[string]small{}}} {
		want, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		e := encoder{codec: new(Codec)}
		if ok := e.encode(v); !ok || string(e.b) != string(want) {
			t.Errorf("encoded %v\n%s\nwant\n%s", ok, e.b, want)
		}
		lines, err := json.MarshalIndent(v, "    ", "  ")
		if err != nil {
			t.Fatal(err)
		}
		e = encoder{codec: new(Codec), lines: true, prefix: "    "}
		if ok := e.encode(v); !ok || string(e.b) != string(lines) {
			t.Errorf("encoded %v\n%s\nwant\n%s", ok, e.b, lines)
		}
		var got, read known
		if ok := new(Codec).decode(want, reflect.ValueOf(&got).Elem()); !ok {
			t.Errorf("not decoded: %s", want)
		}
		if err := json.Unmarshal(want, &read); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(read, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
}

// All other values are left to encoding/json.
func TestOtherValues(t *testing.T) {
	type embedded struct{ small }
	twice := reflect.StructOf([]reflect.StructField{ // go vet wouldn't have it written down
		{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"x"`}, {Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"x"`},
	})
	type quoted struct {
		N int `json:"n,string"`
	}
	type zero struct {
		S small `json:"s,omitzero"`
	}
	for _, tt := range []struct {
		name string
		text string
		v    any
	}{
		{"embedded", `{"a":1}`, &embedded{}},
		{"doubled field", `{"x":1}`, reflect.New(twice).Interface()},
		{"quoted number", `{"n":"5"}`, &quoted{}},
		{"omitzero", `{"s":{}}`, &zero{}},
		{"any", `{"a":[1,"x",null]}`, new(any)},
		{"float", `1.5`, new(float64)},
		{"bytes", `"AAEC"`, new([]byte)},
		{"array", `[1,2,3]`, new([2]int)},
		{"raw", `{"a": 1}`, new(json.RawMessage)},
		{"numbered keys", `{"1":"x"}`, new(map[int]string)},
		{"duration", `5`, new(time.Duration)},
		{"not a pointer", `5`, 5},
		{"nil", `5`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var want any
			if tt.v != nil && reflect.TypeOf(tt.v).Kind() == reflect.Pointer {
				want = reflect.New(reflect.TypeOf(tt.v).Elem()).Interface()
			}
			err, wantErr := new(Codec).Unmarshal([]byte(tt.text), tt.v), json.Unmarshal([]byte(tt.text), want)
			if (err == nil) != (wantErr == nil) || want != nil && !reflect.DeepEqual(tt.v, want) {
				t.Errorf("%v, %v; want %v, %v", tt.v, err, want, wantErr)
			}
			got, err := new(Codec).Marshal(tt.v)
			text, wantErr := json.Marshal(tt.v)
			if string(got) != string(text) || (err == nil) != (wantErr == nil) {
				t.Errorf("%s, %v; want %s, %v", got, err, text, wantErr)
			}
			got, err = new(Codec).Append([]byte("before "), tt.v)
			if string(got) != "before "+string(text) || (err == nil) != (wantErr == nil) {
				t.Errorf("appended %s, %v; want %s, %v", got, err, text, wantErr)
			}
		})
	}
}

// What a variable held before is discarded.
func TestUnmarshalBeginsWithZero(t *testing.T) {
	for _, text := range []string{`{"a":1}`, `{"A":1}`} {
		b := "old"
		v := small{B: &b}
		if err := new(Codec).Unmarshal([]byte(text), &v); err != nil || v.B != nil || v.A != 1 {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
}

// Floats are written without encoding/json where it writes them without an exponent.
func TestFloats(t *testing.T) {
	for _, v := range []float64{0, math.Copysign(0, -1), 1, -0.5, 1e-6, 9.9e-7, 1e20, 1e21, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1)} {
		got, err := new(Codec).Marshal([]float64{v})
		want, wantErr := json.Marshal([]float64{v})
		if string(got) != string(want) || (err == nil) != (wantErr == nil) {
			t.Errorf("%v: %s, %v; want %s, %v", v, got, err, want, wantErr)
		}
	}
}

func addSeeds(f *testing.F) {
	whole, err := json.Marshal(filledKnown())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	for _, s := range []string{
		strange, `{}`, `null`, ` { "text" : "x" , "int" : 5 } `, `{"text":"x","text":"y"}`, `{"TEXT":"x"}`, `{"Text":null}`, `{"int":1.0}`,
		`{"int":1e2}`, `{"int":-0}`, `{"unsigned":-0}`, `{"int":01}`, `{"int8":128}`, `{"big":18446744073709551616}`, `{"bool":"true"}`, `{"list":[{"a":1},null]}`,
		`{"list":[],"words":null,"map":{},"maps":null}`, `{"list":[{"a":1}],"list":[{"b":"x"}]}`, `{"map":{"a":"1","a":"2"}}`, `{"map":{"a":null}}`,
		`{"inner":{"a":1},"inner":null}`, `{"pointer":null,"always":null}`, `{"time":"2026-01-02T03:04:05.000000006Z"}`, `{"time":"x"}`, `{"time":null}`,
		`{"text":"\u0041\ud800"}`, `{"text":"` + "\xff" + `"}`, `{"` + "\xff" + `":1}`, `{"\u0074ext":"x"}`, `{"other":[{"a":[1,2,{}]}],"int":1}`, `{"other":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
		`{"word":"w","words":["a","b"]}`, `{"NoTag":"x","notag":"y"}`, `{"Not":"x","-":"y"}`, `{"text":"x"`, `{"text":"x"}x`, `{"text"}`, `{,}`, `[`, ``, `{"int":tru`, `{"ſmall":{"a":1}}`,
	} {
		f.Add([]byte(s))
	}
}

// FuzzUnmarshal compares with encoding/json.
func FuzzUnmarshal(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var got, want known
		ok := new(Codec).decode(data, reflect.ValueOf(&got).Elem())
		err := json.Unmarshal(data, &want)
		if ok && (err != nil || !reflect.DeepEqual(got, want)) {
			t.Errorf("%q: %+v; encoding/json says %+v, %v", data, got, want, err)
		}
		var again known
		if got := new(Codec).Unmarshal(data, &again); (got == nil) != (err == nil) || err == nil && !reflect.DeepEqual(again, want) {
			t.Errorf("%q: %+v, %v; encoding/json says %+v, %v", data, again, got, want, err)
		}
	})
}

// FuzzMarshal compares with encoding/json, for values that were read.
func FuzzMarshal(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var v known
		_ = json.Unmarshal(data, &v) // what was read by then is a value as any
		got, err := new(Codec).Marshal(v)
		want, wantErr := json.Marshal(v)
		if string(got) != string(want) || (err == nil) != (wantErr == nil) {
			t.Errorf("%s, %v; encoding/json says %s, %v", got, err, want, wantErr)
		}
		got, err = new(Codec).AppendIndent(nil, v, "\t")
		want, wantErr = json.MarshalIndent(v, "\t", "  ")
		if string(got) != string(want) || (err == nil) != (wantErr == nil) {
			t.Errorf("indented %s, %v; encoding/json says %s, %v", got, err, want, wantErr)
		}
	})
}
