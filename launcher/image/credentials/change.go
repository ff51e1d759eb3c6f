package credentials

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-gpu/berth/internal/atomicfile"
	"github.com/berth-gpu/berth/internal/lock"
	"github.com/berth-gpu/berth/launcher/image/registry"
)

// storeIn stores a login in a file of docker's format, or in the helper that the file names for the
// registry. It returns the helper's name, "" for the file.
func storeIn(ctx context.Context, path, host string, l Login) (helper string, err error) {
	err = changeFile(ctx, path, func(file *editedFile) (bool, error) {
		entry := map[string]string{}
		if helper = file.helperOf(host); helper != "" {
			input, err := json.Marshal(map[string]string{"ServerURL": serverAddress(host), "Username": l.User, "Secret": l.Secret})
			if err == nil {
				_, err = callHelper(ctx, helper, "store", input)
			}
			if err != nil {
				return false, err
			}
		} else {
			entry["auth"] = base64.StdEncoding.EncodeToString([]byte(l.User + ":" + l.Secret))
		}
		file.removeEntries(host)
		data, err := json.Marshal(entry) // empty with a helper, as docker writes it
		file.auths[serverAddress(host)] = data
		return true, err
	})
	return helper, err
}

// eraseIn removes the login of a registry from a file and from the helper that the file names. It
// returns whether there was one.
func eraseIn(ctx context.Context, path, host string) (found bool, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	err = changeFile(ctx, path, func(file *editedFile) (bool, error) {
		found = file.removeEntries(host)
		helper := file.helperOf(host)
		if helper == "" {
			return found, nil
		}
		l, err := getFromHelper(ctx, helper, serverAddress(host))
		if err != nil || l == (Login{}) {
			return found, err
		}
		found = true
		_, err = callHelper(ctx, helper, "erase", []byte(serverAddress(host)))
		return true, err
	})
	return found, err
}

// editedFile is a file of docker's format, including the keys that berth doesn't know.
type editedFile struct {
	keys  map[string]json.RawMessage
	auths map[string]json.RawMessage
	known credentialsFile
}

// helperOf returns the credential helper of a registry, "" if its login is stored in the file itself.
func (f *editedFile) helperOf(host string) string {
	for _, key := range hostKeys(host) {
		if helper := f.known.Helpers[key]; helper != "" {
			return helper
		}
	}
	return f.known.Store
}

// removeEntries removes the entries of a registry from the file, under all names of the registry.
func (f *editedFile) removeEntries(host string) (found bool) {
	for key := range f.auths {
		if slices.Contains(hostKeys(host), registry.TrimAddress(key)) {
			delete(f.auths, key)
			found = true
		}
	}
	return found
}

// changeFile replaces a file of docker's format atomically, under a lock of its directory. Missing
// directories and files are created for this user only. If path is a symbolic link, its target is
// replaced.
func changeFile(ctx context.Context, path string, change func(*editedFile) (changed bool, err error)) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("change credentials %s: %w", path, err)
		}
	}()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	target, err := filepath.EvalSymlinks(path) //nolint:forbidigo // the paths of the user whose rights this process has
	if errors.Is(err, fs.ErrNotExist) {
		var dir string                                       // may be a link, which a lock doesn't follow
		dir, err = filepath.EvalSymlinks(filepath.Dir(path)) //nolint:forbidigo // as above
		target = filepath.Join(dir, filepath.Base(path))
	}
	if err != nil {
		return err
	}
	l, err := lock.Open(ctx, filepath.Dir(target), lock.Exclusive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	file, err := parseFile(target)
	if err != nil {
		return err
	}
	if changed, err := change(&file); err != nil || !changed {
		return err
	}
	data, err := file.encode()
	if err != nil {
		return err
	}
	return atomicfile.Write(target, data, 0o600, atomicfile.Options{Sync: true})
}

func parseFile(path string) (editedFile, error) {
	file := editedFile{keys: map[string]json.RawMessage{}, auths: map[string]json.RawMessage{}}
	data, err := readFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.TrimSpace(data)) == 0 {
		return file, nil
	}
	if err == nil {
		err = errors.Join(json.Unmarshal(data, &file.keys), json.Unmarshal(data, &file.known))
	}
	if auths := file.keys["auths"]; err == nil && auths != nil {
		err = json.Unmarshal(auths, &file.auths)
	}
	if file.keys == nil || file.auths == nil { // null
		return editedFile{}, errors.Join(err, errors.New("it is no JSON object"))
	}
	return file, err
}

// encode returns the file in docker's format.
func (f *editedFile) encode() ([]byte, error) {
	auths, err := json.Marshal(f.auths)
	if err != nil {
		return nil, err
	}
	f.keys["auths"] = auths
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "\t")
	err = e.Encode(f.keys)
	return b.Bytes(), err
}
