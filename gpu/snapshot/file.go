package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/berth-gpu/berth/gpu"
	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/json"
	"github.com/berth-gpu/berth/internal/smallfile"
	"github.com/berth-gpu/berth/internal/userns"
)

// schema is the format's version. A file of any other is stale, be it older or newer.
const schema = 3

// maxSize is a hundred times what the largest node needs.
const maxSize = 4 << 20

// header is the first line.
type header struct {
	Schema   int    `json:"berth_snapshot"`
	Key      Key    `json:"key"`
	Checksum uint32 `json:"fnv1a"` // of the second line, without its end
}

// Load reads the snapshot at path and compares it with the machine. An error
// that Is [ErrStale] says in words what changed.
func Load(path string, h gpu.Host) (Snapshot, error) {
	data, err := readSnapshotFile(path)
	if err != nil {
		return Snapshot{}, &StaleError{Path: path, Changes: []string{err.Error()}}
	}
	now, err := ReadKey(h)
	if err != nil {
		return Snapshot{}, fmt.Errorf("compare inventory snapshot with the machine: %w", err)
	}
	s, changes := decodeSnapshot(data, now)
	if changes == nil && s.DriverDir != "" && unix.Access(s.DriverDir, unix.F_OK) != nil {
		changes = []string{"driver directory " + s.DriverDir + " is gone"}
	}
	if changes != nil {
		return Snapshot{}, &StaleError{Path: path, Changes: changes}
	}
	return s, nil
}

// LoadAny is Load for a snapshot that needn't fit the machine any more.
func LoadAny(path string) (Snapshot, error) {
	data, err := readSnapshotFile(path)
	if err != nil {
		return Snapshot{}, &StaleError{Path: path, Changes: []string{err.Error()}}
	}
	head, _, _ := bytes.Cut(data, []byte("\n"))
	var codec json.Codec
	var h header
	_ = codec.Unmarshal(head, &h) // decodeSnapshot says what is wrong with it
	s, changes := decodeSnapshot(data, h.Key)
	if changes != nil {
		return Snapshot{}, &StaleError{Path: path, Changes: changes}
	}
	return s, nil
}

// Save writes the snapshot atomically. The same snapshot is the same bytes.
func Save(path string, s Snapshot) error {
	data, err := encodeSnapshot(s)
	if err != nil {
		return fmt.Errorf("save inventory snapshot: %w", err)
	}
	if err := atomicfile.Write(path, data, 0o644, atomicfile.Options{}); err != nil {
		return fmt.Errorf("save inventory snapshot: %w", err)
	}
	return nil
}

func encodeSnapshot(s Snapshot) ([]byte, error) {
	var codec json.Codec
	body, err := codec.Marshal(s)
	if err != nil {
		return nil, err
	}
	head, err := codec.Marshal(header{Schema: schema, Key: s.Key, Checksum: checksum(body)})
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{head, body, nil}, []byte("\n")), nil
}

// checksum detects accidental damage. FNV-1a needs no tables, whose initialisation would slow down
// each container start.
func checksum(data []byte) uint32 {
	h := fnv.New32a()
	_, _ = h.Write(data) // never fails
	return h.Sum32()
}

// decodeSnapshot reads a file of a machine whose key is now. changes is nil if the snapshot is
// current. The inventory is decoded only then.
func decodeSnapshot(data []byte, now Key) (s Snapshot, changes []string) {
	head, body, _ := bytes.Cut(data, []byte("\n"))
	var codec json.Codec
	var h header
	if err := codec.Unmarshal(head, &h); err != nil {
		return Snapshot{}, []string{"it is damaged: " + err.Error()}
	}
	if h.Schema != schema {
		return Snapshot{}, []string{"it was written by another version of berth"}
	}
	if changes := h.Key.Changes(now); changes != nil {
		return Snapshot{}, changes
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if checksum(body) != h.Checksum {
		return Snapshot{}, []string{"it is damaged: wrong checksum"}
	}
	if err := codec.Unmarshal(body, &s); err != nil {
		return Snapshot{}, []string{"it is damaged: " + err.Error()}
	}
	s.Key = h.Key
	return s, nil
}

// readSnapshotFile returns the bytes of a file that can be trusted. Its errors are reasons,
// without the path.
func readSnapshotFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("there is none yet")
	case errors.Is(err, unix.ELOOP):
		return nil, errors.New("it is a symbolic link")
	case err != nil:
		return nil, err
	}
	data, err := readTrusted(fd)
	return data, errors.Join(err, unix.Close(fd))
}

func readTrusted(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, errors.New("it is not a regular file")
	case !userns.IsTrusted(st.Uid):
		return nil, fmt.Errorf("it belongs to user %d", st.Uid)
	case st.Mode&0o022 != 0:
		return nil, fmt.Errorf("other users may write to it (mode %#o)", st.Mode&0o777)
	}
	return smallfile.ReadFD(fd, st.Size, maxSize)
}
