package request

import "testing"

func TestJoin(t *testing.T) {
	tests := []struct{ a, b, want string }{
		{"2", "2", "2"},
		{"2", "count=2", "2"},
		{"2", "3", ""},
		{"h100", "a100", ""},
		{"2", "device=0", ""},
		{"device=0", "device=1", "device=0,1"},
		{"device=1,0", "GPU-abc", "device=1,0,gpu-abc"},
		{"device=0", "device=0", "device=0"},
		{"device=0", "0,1", "device=0,1"},
		{"all", "all", "all"},
		{"all", "device=0", ""},
		{"2", "2,+gds", "2,+gds"},
		{"2,+imex=0", "2,+imex=1", ""},
		{"2", "v/c=a", "2,v/c=a"},
		{"v/c=a", "2", "2,v/c=a"},
		{"v/c=b", "v/c=a", "v/c=a,v/c=b"},
		{"v/c=a", "v/c=a", "v/c=a"},
		{"1,v/c=a", "1,v/c=b,+gds", "1,+gds,v/c=a,v/c=b"},
		{"2,mem>=40G", "2", ""},
	}
	for _, tt := range tests {
		t.Run(tt.a+" and "+tt.b, func(t *testing.T) {
			a, b := mustParse(t, tt.a), mustParse(t, tt.b)
			got, ok := a.Join(b)
			if ok != (tt.want != "") || ok && got.String() != mustParse(t, tt.want).String() {
				t.Errorf("got %q, %v, want %q", got, ok, tt.want)
			}
			back, same := b.Join(a)
			if same != ok || ok && a.kind != kindIDs && back != got {
				t.Errorf("the other way round: %q, %v", back, same)
			}
		})
	}
}
