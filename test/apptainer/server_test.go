package apptainer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-gpu/berth/test/image/oci"
	"github.com/berth-gpu/berth/test/rack"
	"github.com/berth-gpu/berth/test/rig"
)

// server is a host with Apptainer, berth, the user and the images.
type server struct {
	*rack.Host
	self string // this program, for the scripts
}

// settle completes the server: the device nodes and links that udev makes, a time zone, the user, and berth. The images and
// home directories are in file systems of their own, because the root is an overlay, and on that no other overlay can be mounted.
const settle = `chmod 666 /dev/fuse
for fd in 0:stdin 1:stdout 2:stderr; do ln -s /proc/self/fd/${fd%:*} /dev/${fd#*:}; done
ln -sf /usr/share/zoneinfo/UTC /etc/localtime
ldconfig
mount -t tmpfs -o mode=755 tmpfs /home
groupadd --gid 4800 lab
useradd --uid 4711 --user-group --groups lab --create-home --shell /bin/bash ann
mkdir /images /opt/host
mount -t tmpfs -o mode=755 tmpfs /images
chown ann: /images
mkdir -p /opt/words /etc/berth
cp "$0"/berth "$0"/berth-* /usr/local/bin
echo "runtime = 'runc'" >/etc/berth/config.toml
berth discover --quiet
`

// startServer starts a server with the images of buildImages.
func startServer(t *testing.T) *server {
	t.Helper()
	s := startPlainServer(t)
	s.do(t, append(asUser(), "env", "-C", "/images", "HOME=/images/home", "sh", "-ec", buildImages, shared.Dir)...)
	s.do(t, "sh", "-ec", "cp -r /images/sandbox /opt/foreign; chown -R 0:0 /opt/foreign") // an image of another user
	return s
}

// asUser returns the words that run a command as the user.
func asUser() []string {
	return []string{"setpriv", "--reuid", user, "--regid", user, "--init-groups"}
}

// startPlainServer starts a server without images.
func startPlainServer(t *testing.T) *server {
	t.Helper()
	skipUnlessWanted(t)
	tree, err := rack.Tree("users")
	rig.Must(t, err)
	if _, err := os.Stat(filepath.Join(tree, "usr/bin/apptainer")); err != nil {
		t.Fatalf("Debian's Apptainer couldn't be installed (test/engines/tree.sh): %v", err)
	}
	rig.Must(t, makeEntryImage(filepath.Join(shared.Dir, "entry")))
	for _, name := range []string{"busybox", "debian"} {
		rig.Must(t, exec.Command("cp", "-r", rig.ImagePath(t, name), shared.Dir).Run())
	}
	started, err := rack.Start(rack.Options{
		Tree: tree, Cgroup: "v2", Simnode: filepath.Join(shared.Dir, "simnode"), Share: shared.Dir, Key: "apptainer",
	})
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, started.Stop()) })
	s := &server{Host: started, self: filepath.Join(shared.Dir, "self")}
	here, err := os.Executable()
	rig.Must(t, err)
	rig.Must(t, exec.Command("cp", here, s.self).Run())
	s.do(t, "sh", "-ec", settle, shared.Dir)
	s.startRegistry(t)
	s.startBroker(t)
	return s
}

// startRegistry starts a registry, which serves until the server ends.
func (s *server) startRegistry(t *testing.T) {
	t.Helper()
	cmd := s.Command("env", runsInside+"=registry", s.self)
	rig.Must(t, cmd.Start())
	go func() { _ = cmd.Wait() }() // it is killed in the end
	rig.WaitUntil(t, "the registry listens", func() bool {
		return s.Command("bash", "-c", "</dev/tcp/"+strings.Replace(registryHost, ":", "/", 1)).Run() == nil
	})
}

// startBroker starts berth-broker, which serves users without root until the server ends.
func (s *server) startBroker(t *testing.T) {
	t.Helper()
	cmd := s.Command("berth-broker")
	rig.Must(t, cmd.Start())
	go func() { _ = cmd.Wait() }() // it is killed in the end
	rig.WaitUntil(t, "the broker listens", func() bool {
		_, err := os.Stat(s.Path("/run/berth/broker.sock"))
		return err == nil
	})
}

// do runs a command of the server's root that has to succeed.
func (s *server) do(t *testing.T, words ...string) {
	t.Helper()
	if out, err := s.Command(words...).CombinedOutput(); err != nil {
		t.Fatalf("%.80q: %v: %s", words, err, out)
	}
}

// The programs that run the scripts.
const (
	apptainerProgram = "/usr/bin/apptainer"
	berthProgram     = "/usr/local/bin/berth"
)

// run runs a script with a program in the place of apptainer, and returns the normalized outcome.
func (s *server) run(program, text string) (o outcome, err error) {
	err = s.runSelf("script", script{Text: text, Program: program}, &o)
	o.Out, o.Err = normalize(o.Out), normalize(o.Err)
	return o, err
}

// runSelf runs a part of this program inside the server.
func (s *server) runSelf(part string, in, out any) error {
	data, err := json.Marshal(in)
	if err != nil {
		return err
	}
	cmd := s.Command("env", runsInside+"="+part, s.self)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(data), &errs
	said, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run %s: %w: %s", part, err, &errs)
	}
	return json.Unmarshal(said, out)
}

// makeEntryImage makes an OCI image with an entry point and all settings that a runscript is made of.
func makeEntryImage(dir string) error {
	program, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer := oci.Layer{Tar: oci.Tar(oci.Busybox(data, []string{"sh", "cat", "env", "id", "ls", "pwd", "sort"})...), Compression: "gzip"}
	return oci.Write(dir, oci.Image{Tag: "latest", Layers: []oci.Layer{layer}, Config: ispec.ImageConfig{
		Env: []string{"PATH=/usr/local/bin:/bin", "OF=image", "WORDS=two words"}, Entrypoint: []string{"sh", "-c", `echo "$0 $@: $OF $WORDS $PWD"`},
		Cmd: []string{"one", "$HOME"}, WorkingDir: "/of/image", User: "1234", Labels: map[string]string{"of": "image"},
	}})
}

// buildImages builds the images in the working directory from the OCI layouts in $0, with Apptainer alone.
//
//	bare.sif     busybox, as it comes from a registry
//	debian.sif   Debian: glibc, bash
//	entry.sif    an OCI image with an entry point
//	full.sif     all sections of a definition file
//	overlay.sif  bare.sif with a writable partition
//	signed.sif   bare.sif with a signature of the key in the directory keys
//	pem.sif      bare.sif with a signature of key.pem, whose public key is public.pem
//	overlay.img  a writable file system of its own
//	sandbox      full.sif as a directory
//	layout       the OCI layout of bare.sif
//	entry        that of entry.sif
//	plain        a directory with busybox alone, without Apptainer's files
const buildImages = `mkdir -p home
log=build.log
build() { apptainer --silent build --mksquashfs-args "-noI -noD -noF -noX" "$@" >$log 2>&1 || { cat $log; exit 1; }; }
build bare.sif oci:$0/busybox
(log=debian.log; build debian.sif oci:$0/debian) &
build entry.sif oci:$0/entry
cp -r $0/busybox layout
cp -r $0/entry entry
echo "of the host" >file
cat >full.def <<'END'
Bootstrap: localimage
From: bare.sif

%labels
    Author ann
    Version 1.2

%help
    Help of the image.

%files
    file /opt/file

%environment
    export DEFINED=definition
    export BOTH=definition
    export LATE="$DEFINED, $HOME"

%post
    echo 'export POST=post' >>$APPTAINER_ENVIRONMENT
    mkdir -p /data /work /opt/host
    echo "of the image" >/data/file
    echo '127.0.0.1 of-the-image' >/etc/hosts
    chmod 600 /data/file

%runscript
    echo "runscript: $# arguments: $DEFINED $APPTAINER_COMMAND"
    for word; do echo "<$word>"; done

%startscript
    echo "startscript: $# arguments: $DEFINED $A $APPTAINER_COMMAND"
    for word; do echo "<$word>"; done

%test
    echo "tested: $@"

%apprun tool
    echo "tool: $@"
    echo "$TOOL $SCIF_APPNAME $SCIF_APPROOT $PATH"

%appenv tool
    export TOOL=hammer
    export BOTH=tool

%appinstall tool
    mkdir -p bin
    printf '#!/bin/sh\necho helper\n' >bin/helper
    chmod 755 bin/helper

%applabels tool
    Kind tool

%apphelp tool
    Help of the tool.
END
build full.sif full.def
cp bare.sif overlay.sif
apptainer --silent overlay create --size 64 overlay.sif
apptainer --silent overlay create --size 64 overlay.img
cp bare.sif signed.sif
mkdir -m 700 keys
export APPTAINER_KEYSDIR=$PWD/keys
apptainer --silent key newpair --name Ann --email ann@example.org --comment test --password '' --push=false --bit-length 2048 >$log
apptainer --silent sign signed.sif
cp bare.sif pem.sif
openssl genrsa -out key.pem 2048 2>$log
openssl rsa -in key.pem -pubout -out public.pem 2>$log
apptainer --silent sign --key key.pem pem.sif
build --sandbox sandbox full.sif
mkdir -p plain/bin plain/etc plain/proc plain/tmp
cp /usr/bin/busybox plain/bin/busybox
for applet in sh ls cat echo env id; do ln -s busybox plain/bin/$applet; done
wait $!
`
