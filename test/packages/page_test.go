package packages

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-gpu/berth/internal/testutil"
)

// The guide's commands install berth, set up an engine, and remove both.
func TestInstallPage(t *testing.T) {
	skipUnlessWanted(t)
	page, err := os.ReadFile("../../docs/install.md")
	testutil.Must(t, err)
	blocks := regexp.MustCompile("(?ms)^```sh install$(.*?)^```$").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands: one installs and one removes", len(blocks))
	}
	h := boot(t, "forky", "v2")
	before := h.files()
	h.do("sh", "-c", `echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/90yes && mkdir /srv/page && cp "$0" /srv/page`, deb(older))
	h.do("sh", "-exc", "cd /srv/page\n"+blocks[0][1])
	if got := h.do("cat", "/etc/docker/daemon.json"); !strings.Contains(got, `"/usr/bin/berth-runtime"`) {
		t.Errorf("docker is not set up: %s", got)
	}
	h.do("sh", "-exc", blocks[1][1])
	h.do("rm", "-r", "/etc/apt/apt.conf.d/90yes", "/srv/page")
	compare(t, before, h.files(), "")
}
