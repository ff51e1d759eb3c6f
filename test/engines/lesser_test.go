package engines

import "testing"

// lesser is a runc that drops a capability which root lacks on some machines: Docker 20.10 gives
// privileged containers all capabilities, and runc then fails. It restores the spec afterwards,
// because berth reads it again when the container ends.
const (
	lesser     = "/opt/lesser/runc"
	lesserText = `#!/bin/sh
last= bundle=
for word; do
	[ "$last" != --bundle ] || bundle=$word
	last=$word
done
if [ -z "$bundle" ] || [ $((0x$(sed -n 's/^CapBnd:\t//p' /proc/self/status) >> 24 & 1)) = 1 ]; then
	exec /usr/bin/runc "$@"
fi
spec=$(cat "$bundle/config.json")
printf %s "$spec" | sed 's/,"CAP_SYS_RESOURCE"//g' >"$bundle/config.json"
/usr/bin/runc "$@"
code=$?
printf %s "$spec" >"$bundle/config.json"
exit $code
`
)

// lesser installs it.
func (h *host) lesser(t *testing.T) {
	t.Helper()
	h.write(t, lesser, lesserText)
	h.do(t, "chmod", "+x", lesser)
}
