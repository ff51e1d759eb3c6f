package oci

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"time"
)

// File is an entry of an archive. The zero Type is a regular file, or a
// directory if the name ends with a slash.
type File struct {
	Name  string
	Body  string
	Mode  int64 // 0 means 0644, for directories and links 0755
	Type  byte
	Link  string
	UID   int
	GID   int
	Major int64
	Minor int64
	// Xattrs by name, as in "user.note".
	Xattrs map[string]string
}

// Tar returns an archive in which all files have the same time.
func Tar(files ...File) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := f.header()
		// Writing to memory fails only for headers that can't be expressed.
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		if _, err := io.WriteString(w, f.Body); err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return &b
}

func (f File) header() *tar.Header {
	h := &tar.Header{
		Name: f.Name, Linkname: f.Link, Mode: f.Mode, Typeflag: f.Type, Size: int64(len(f.Body)),
		Uid: f.UID, Gid: f.GID, Devmajor: f.Major, Devminor: f.Minor,
		ModTime: time.Unix(1_700_000_000, 0), Format: tar.FormatPAX,
	}
	if h.Typeflag == 0 && strings.HasSuffix(f.Name, "/") {
		h.Typeflag = tar.TypeDir
	} else if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	if h.Mode == 0 && h.Typeflag == tar.TypeReg {
		h.Mode = 0o644
	} else if h.Mode == 0 {
		h.Mode = 0o755
	}
	for k, v := range f.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords["SCHILY.xattr."+k] = v
	}
	return h
}

// Busybox lists the files of a root file system that has one static program
// under all its names, and no loader, no library and no ld.so.cache.
func Busybox(program []byte, applets []string) []File {
	files := []File{
		{Name: "bin/"},
		{Name: "dev/"},
		{Name: "proc/"},
		{Name: "sys/"},
		{Name: "root/", Mode: 0o700},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "etc/"},
		{Name: "etc/passwd", Body: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser:x:1000:1000::/home/user:/bin/sh\n"},
		{Name: "etc/group", Body: "root:x:0:\nnogroup:x:65534:\nuser:x:1000:\nvideo:x:44:user\n"},
		{Name: "home/"},
		{Name: "home/user/", UID: 1000, GID: 1000},
		{Name: "bin/busybox", Body: string(program), Mode: 0o755},
	}
	for _, name := range applets {
		if name != "busybox" {
			files = append(files, File{Name: "bin/" + name, Type: tar.TypeSymlink, Link: "busybox", Mode: 0o777})
		}
	}
	return files
}
