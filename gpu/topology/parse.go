package topology

import "bytes"

// Bounds of NCCL's reader.
const (
	maxText     = 254 // bytes of a name or a value
	maxAttrs    = 16  // of an element
	maxElements = 256 // that it knows, of a file
	maxDepth    = 64  // more than any machine has, and than we recurse
)

// element is one of the file.
type element struct {
	name       string
	line       int
	attributes map[string]string
	count      int // of attributes
	elements   []element
}

// scanner goes through the text once.
type scanner struct {
	text  []byte
	at    int
	line  int
	count int
}

// parse reads elements as NCCL does: between tags there is nothing but spaces, line ends
// and comments, and in a tag nothing but spaces. A space too many counts as an attribute.
func parse(text []byte) ([]element, error) {
	s := &scanner{text: text, line: 1}
	all, closed, err := s.elements(0)
	if err == nil && closed != "" {
		err = broken(s.line, "</%s> closes nothing", closed)
	}
	return all, err
}

// elements reads up to the end of the file, or to a closing tag, whose name it returns.
func (s *scanner) elements(depth int) (all []element, closed string, err error) {
	if depth > maxDepth {
		return nil, "", broken(s.line, "more than %d elements within each other", maxDepth)
	}
	for {
		ended, err := s.between()
		if err != nil || ended {
			return all, "", err
		}
		if s.is("</") {
			closed, err = s.closing()
			return all, closed, err
		}
		e, open, err := s.tag()
		if err != nil {
			return nil, "", err
		}
		if open {
			if e.elements, closed, err = s.elements(depth + 1); err != nil {
				return nil, "", err
			}
			if closed != e.name {
				return nil, "", s.unclosed(e, closed)
			}
		}
		if all = append(all, e); known(e.name) {
			s.count++
		}
		if s.count > maxElements {
			return nil, "", broken(e.line, "more than %d elements: NCCL reads no more", maxElements)
		}
	}
}

func (s *scanner) unclosed(e element, closed string) error {
	if closed == "" {
		return broken(e.line, "<%s> is never closed", e.name)
	}
	return broken(s.line, "</%s> closes <%s> of line %d", closed, e.name, e.line)
}

// known says that NCCL keeps an element; it passes over others.
func known(name string) bool {
	switch name {
	case "system", "cpu", "pci", "pcilink", "gpu", "nvlink", "c2c", "nic", "net":
		return true
	}
	return false
}

// between passes over what may stand between tags. ended says that nothing follows.
func (s *scanner) between() (ended bool, err error) {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == '\n':
			s.line++
			s.at++
		case c == ' ' || c == '\r':
			s.at++
		case c == '\t':
			return false, broken(s.line, "a tab: NCCL takes spaces alone")
		case c != '<':
			return false, broken(s.line, "text between tags: NCCL takes none")
		case s.is("<!--"):
			if err := s.comment(); err != nil {
				return false, err
			}
		case s.is("<?"):
			return false, broken(s.line, "an XML header, or another <?…?>: NCCL takes none, the file begins with <system")
		case s.is("<!"):
			return false, broken(s.line, "a DOCTYPE, or another <!…>: NCCL takes none, the file begins with <system")
		default:
			return false, nil
		}
	}
	return true, nil
}

func (s *scanner) is(text string) bool { return bytes.HasPrefix(s.text[s.at:], []byte(text)) }

func (s *scanner) comment() error {
	end := bytes.Index(s.text[s.at:], []byte("-->"))
	if end < 0 {
		return broken(s.line, "a comment is never closed")
	}
	s.line += bytes.Count(s.text[s.at:s.at+end], []byte{'\n'})
	s.at += end + len("-->")
	return nil
}

func (s *scanner) closing() (string, error) {
	s.at += len("</")
	name, err := s.word()
	if err != nil {
		return "", err
	}
	if name == "" || !s.is(">") {
		return "", broken(s.line, "a closing tag is </NAME>, and nothing else is in it")
	}
	s.at++
	return name, nil
}

// tag reads an opening tag; open says that it wants a closing one.
func (s *scanner) tag() (e element, open bool, err error) {
	s.at++
	e = element{line: s.line, attributes: map[string]string{}}
	if e.name, err = s.word(); err != nil {
		return e, false, err
	}
	if e.name == "" {
		return e, false, broken(s.line, "a tag without a name")
	}
	for s.is(" ") {
		s.at++
		if s.is(">") || s.is("/>") {
			break // a last space is harmless
		}
		if err := s.attribute(&e); err != nil {
			return e, false, err
		}
	}
	switch {
	case s.is("/>"):
		s.at += len("/>")
		return e, false, nil
	case s.is(">"):
		s.at++
		return e, true, nil
	case s.is("\n"), s.is("\r"):
		return e, false, broken(s.line, "<%s> goes on in the next line: NCCL wants a tag on one", e.name)
	case s.is("\t"):
		return e, false, broken(s.line, "a tab in <%s>: NCCL takes spaces alone", e.name)
	case s.at == len(s.text):
		return e, false, broken(s.line, "the file ends within <%s>", e.name)
	}
	return e, false, broken(s.line, "<%s> has a %q where a space or its end would be", e.name, s.text[s.at])
}

// attribute reads NAME="VALUE", or a name without a value, which NCCL takes too.
func (s *scanner) attribute(e *element) error {
	name, err := s.word()
	if e.count++; err != nil {
		return err
	}
	switch {
	case s.at == len(s.text):
		return broken(s.line, "the file ends within <%s>", e.name)
	case s.is("\n"), s.is("\r"):
		return broken(s.line, "<%s> goes on in the next line: NCCL wants a tag on one", e.name)
	case s.is("\t"):
		return broken(s.line, "a tab in <%s>: NCCL takes spaces alone", e.name)
	case e.count > maxAttrs:
		return broken(s.line, "<%s> has more than %d attributes, with spaces too many", e.name, maxAttrs)
	case s.is(" "), s.is(">"), s.is("/>"):
		return nil
	case name == "":
		return broken(s.line, "<%s> has a %q where an attribute would be", e.name, s.text[s.at])
	case !s.is(`="`) && !s.is(`='`):
		return broken(s.line, "%s of <%s> has no value in quotes right behind it", name, e.name)
	}
	value, err := s.quoted(name)
	if _, twice := e.attributes[name]; !twice { // of doubles NCCL finds the first
		e.attributes[name] = value
	}
	return err
}

// quoted reads ="VALUE". NCCL knows no entities: what stands there is the value.
func (s *scanner) quoted(name string) (string, error) {
	quote := s.text[s.at+1]
	s.at += 2
	end := bytes.IndexByte(s.text[s.at:], quote)
	if end < 0 {
		return "", broken(s.line, "the value of %s has no end", name)
	}
	value := s.text[s.at : s.at+end]
	if len(value) >= maxText {
		return "", broken(s.line, "the value of %s has more than %d bytes", name, maxText-1)
	}
	s.line += bytes.Count(value, []byte{'\n'})
	s.at += end + 1
	return string(value), nil
}

// word reads up to what ends a name.
func (s *scanner) word() (string, error) {
	end := bytes.IndexAny(s.text[s.at:], " >/=\n\r\t<\"'")
	if end < 0 {
		end = len(s.text) - s.at
	}
	if end >= maxText {
		return "", broken(s.line, "a name of more than %d bytes", maxText-1)
	}
	word := string(s.text[s.at : s.at+end])
	s.at += end
	return word, nil
}
