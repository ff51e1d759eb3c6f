package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// maxAccounts bounds /etc/passwd and /etc/group of an image, in bytes.
const maxAccounts = 8 << 20

// User is the user of a process in a container.
type User struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
	Home     string   // "/" if the image has none
}

// LookupUser resolves "user[:group]", names or numbers, with the image's own /etc/passwd and /etc/group;
// "" is root. A name must have an entry there. Supplementary groups are looked up only without a group.
// The primary group is always among them: a process that changes its primary group must not get access to
// files that deny it to that group (CVE-2022-2989).
func LookupUser(root *os.File, name string) (User, error) {
	passwd, err := readAccounts(root, "/etc/passwd")
	if err != nil {
		return User{}, err
	}
	group, err := readAccounts(root, "/etc/group")
	if err != nil {
		return User{}, err
	}
	u, err := findUser(passwd, group, name)
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, err)
	}
	return u, nil
}

func readAccounts(root *os.File, name string) (string, error) {
	data, err := ReadFile(root, name, maxAccounts)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(data), err
}

func findUser(passwd, group, name string) (User, error) {
	name, groupName, hasGroup := strings.Cut(name, ":")
	if name == "" {
		name = "0"
	}
	u, login, err := findAccount(passwd, name)
	if err != nil {
		return User{}, err
	}
	if hasGroup {
		u.GID, err = findGroup(group, groupName)
	}
	u.Groups = []uint32{u.GID}
	if !hasGroup && login != "" {
		u.Groups = append(u.Groups, findMemberships(group, login, u.GID)...)
	}
	return u, err
}

// findAccount returns the account with this name, or else with this number, and its login name.
func findAccount(passwd, name string) (User, string, error) {
	number, isNumber := parseID(name)
	best := User{UID: number, Home: "/"}
	login := ""
	for line := range strings.SplitSeq(passwd, "\n") {
		f := strings.Split(line, ":")
		if len(f) < 7 {
			continue
		}
		uid, ok1 := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok1 || !ok2 {
			continue
		}
		if f[0] == name || (isNumber && uid == number && login == "") {
			best, login = User{UID: uid, GID: gid, Home: homeOf(f[5])}, f[0]
		}
		if f[0] == name {
			return best, login, nil
		}
	}
	if login == "" && !isNumber {
		return User{}, "", errors.New("not in the image's /etc/passwd")
	}
	return best, login, nil
}

func findGroup(group, name string) (uint32, error) {
	number, isNumber := parseID(name)
	for line := range strings.SplitSeq(group, "\n") {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] != name {
			continue
		}
		if gid, ok := parseID(f[2]); ok {
			return gid, nil
		}
	}
	if !isNumber {
		return 0, fmt.Errorf("group %q is not in the image's /etc/group", name)
	}
	return number, nil
}

func findMemberships(group, login string, primary uint32) []uint32 {
	var ids []uint32
	for line := range strings.SplitSeq(group, "\n") {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		gid, ok := parseID(f[2])
		if !ok || gid == primary {
			continue
		}
		for member := range strings.SplitSeq(f[3], ",") {
			if strings.TrimSpace(member) == login {
				ids = append(ids, gid)
				break
			}
		}
	}
	return ids
}

// parseID parses a uid or gid. (uint32)-1 is invalid: to the kernel it means "no id".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n != 1<<32-1
}

func homeOf(s string) string {
	if !strings.HasPrefix(s, "/") {
		return "/"
	}
	return s
}
