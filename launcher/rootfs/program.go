package rootfs

import (
	"bytes"
	"encoding/binary"
	"io"
	"path"
	"runtime"
	"strings"
)

// program is what the header of a program says. The header is untrusted; the zero value stands for a
// program that can't be parsed.
type program struct {
	interpreter string // "" if it needs none
	script      bool   // a script, whose interpreter may need an interpreter too
	foreign     bool   // an ELF file for another processor
	unknown     bool   // neither an ELF file nor a script with an interpreter
}

// maxInterpreter is the kernel's limit for the path of an interpreter, in bytes.
const maxInterpreter = 4096

func inspectProgram(r io.ReaderAt) program {
	head := make([]byte, 256)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return program{}
	}
	head = head[:n]
	if line, ok := bytes.CutPrefix(head, []byte("#!")); ok {
		line, _, _ = bytes.Cut(line, []byte("\n"))
		if words := strings.Fields(string(line)); len(words) > 0 {
			return program{interpreter: words[0], script: true}
		}
		return program{unknown: true}
	}
	const elfHeader = 52 // bytes of the shorter header, of 32-bit files
	if len(head) < elfHeader || !bytes.HasPrefix(head, []byte("\x7fELF")) {
		return program{unknown: true}
	}
	return inspectELF(r, head)
}

// inspectELF parses a 64-bit little-endian ELF file, the only kind that tasks run: e_machine, and the path
// in the PT_INTERP segment.
func inspectELF(r io.ReaderAt, head []byte) program {
	const (
		size    = 64 // of the file header
		entry   = 56 // of a program header
		interp  = 3  // PT_INTERP
		maximum = 256
	)
	if len(head) < size || !bytes.HasPrefix(head, []byte("\x7fELF\x02\x01")) {
		return program{}
	}
	le := binary.LittleEndian
	machine := map[string]uint16{"amd64": 62, "arm64": 183}[runtime.GOARCH]
	if machine != 0 && le.Uint16(head[18:]) != machine {
		return program{foreign: true}
	}
	count := int(le.Uint16(head[56:]))
	if le.Uint16(head[54:]) != entry || count > maximum {
		return program{}
	}
	headers := make([]byte, count*entry)
	if _, err := r.ReadAt(headers, int64(le.Uint64(head[32:])&(1<<62-1))); err != nil {
		return program{}
	}
	for ; len(headers) > 0; headers = headers[entry:] {
		if le.Uint32(headers) == interp {
			return program{interpreter: readPath(r, le.Uint64(headers[8:]), le.Uint64(headers[32:]))}
		}
	}
	return program{}
}

// readPath reads an absolute path that ends with NUL, or returns "".
func readPath(r io.ReaderAt, offset, size uint64) string {
	if size > maxInterpreter || offset >= 1<<62 {
		return ""
	}
	data := make([]byte, size)
	if _, err := r.ReadAt(data, int64(offset)); err != nil {
		return ""
	}
	name, _, _ := bytes.Cut(data, []byte{0})
	if !path.IsAbs(string(name)) {
		return ""
	}
	return string(name)
}
