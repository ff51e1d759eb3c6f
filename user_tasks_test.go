package berth

import "testing"

// TestParseTaskCgroup: of several tasks that a path looks like, the outermost counts, so that no name below a cgroup of another user's changes
// whose task it is.
func TestParseTaskCgroup(t *testing.T) {
	const group, id = "/berth/alloc-12.34.56-0a", "0123456789ab"
	const rank = "ffffffffffff"
	isID := func(name string) bool { return name == id || name == rank }
	for _, c := range []struct{ path, group, id, rank string }{
		{group + "/main/" + id + "/container", group, id, ""},
		{group + "/main/" + id + "/container/deep/er", group, id, ""},
		{group + "/alloc-78.90.12-0b/main/" + id + "/container", group + "/alloc-78.90.12-0b", id, ""},
		{"/user.slice/session-3.scope/alloc-12.34.56-0a/main/" + id + "/container", "/user.slice/session-3.scope/alloc-12.34.56-0a", id, ""},
		{group + "/main/command/alloc-1.1.1-1/main/" + id + "/container", group + "/main/command/alloc-1.1.1-1", id, ""},
		{group + "/main/" + id + "/container/alloc-1.1.1-1/main/ffffffffffff/container", group, id, ""},
		{group + "/main/" + id + "/" + rank + "/container/deep", group, id, rank},
		{group + "/main/" + id + "/container/" + rank + "/container", group, id, ""},
		{group + "/main/" + id + "/" + rank + "/" + rank + "/container", "", "", ""},
		{group + "/main/" + id + "/" + rank, "", "", ""},
		{group + "/main/" + id + "/other/container", "", "", ""},
		{group + "/main/" + id + "/runtime", "", "", ""},
		{group + "/main/" + id, "", "", ""},
		{group + "/main/monitors", "", "", ""},
		{group + "/main/other/container", "", "", ""},
		{group + "/main/command", "", "", ""},
		{group + "/" + id + "/container", "", "", ""},
		{"/berth/" + id + "/container", "", "", ""},
		{"/alloc-x/main/" + id + "/container", "", "", ""},
		{"/", "", "", ""},
		{"", "", "", ""},
	} {
		group, got, rank, ok := parseTaskCgroup(c.path, isID)
		if group != c.group || got != c.id || rank != c.rank || ok != (c.id != "") {
			t.Errorf("%s: %q, %q, %q", c.path, group, got, rank)
		}
	}
}
