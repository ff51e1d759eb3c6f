package topology

import "bytes"

// Bounds of NCCL's reader.
const (
	maxText     = 254 // bytes of a name or a value
	maxAttrs    = 16  // of an element
	maxElements = 256 // known elements of a file
	maxDepth    = 64  // more than any machine has, and than we recurse
)

// element is one element of the file.
type element struct {
	name       string
	line       int
	attributes map[string]string
	count      int // number of attributes
	elements   []element
}

// scanner reads the text once, from the beginning to the end.
type scanner struct {
	text  []byte
	at    int
	line  int
	count int
}

// parseElements reads elements as NCCL does: between tags there is nothing but spaces, line ends
// and comments, and in a tag nothing but spaces. A space too many counts as an attribute.
func parseElements(text []byte) ([]element, error) {
	s := &scanner{text: text, line: 1}
	all, closed, err := s.readElements(0)
	if err == nil && closed != "" {
		err = errorAt(s.line, "</%s> closes nothing", closed)
	}
	return all, err
}

// readElements reads up to the end of the file, or to a closing tag, whose name it returns.
func (s *scanner) readElements(depth int) (all []element, closed string, err error) {
	if depth > maxDepth {
		return nil, "", errorAt(s.line, "more than %d elements within each other", maxDepth)
	}
	for {
		ended, err := s.skipBetweenTags()
		if err != nil || ended {
			return all, "", err
		}
		if s.hasPrefix("</") {
			closed, err = s.readClosingTag()
			return all, closed, err
		}
		e, open, err := s.readOpeningTag()
		if err != nil {
			return nil, "", err
		}
		if open {
			if e.elements, closed, err = s.readElements(depth + 1); err != nil {
				return nil, "", err
			}
			if closed != e.name {
				return nil, "", s.unclosedError(e, closed)
			}
		}
		if all = append(all, e); isKnownElement(e.name) {
			s.count++
		}
		if s.count > maxElements {
			return nil, "", errorAt(e.line, "more than %d elements: NCCL reads no more", maxElements)
		}
	}
}

func (s *scanner) unclosedError(e element, closed string) error {
	if closed == "" {
		return errorAt(e.line, "<%s> is never closed", e.name)
	}
	return errorAt(s.line, "</%s> closes <%s> of line %d", closed, e.name, e.line)
}

// isKnownElement reports whether NCCL reads an element; it skips all others.
func isKnownElement(name string) bool {
	switch name {
	case "system", "cpu", "pci", "pcilink", "gpu", "nvlink", "c2c", "nic", "net":
		return true
	}
	return false
}

// skipBetweenTags passes over what may stand between tags. ended says that nothing follows.
func (s *scanner) skipBetweenTags() (ended bool, err error) {
	for s.at < len(s.text) {
		switch c := s.text[s.at]; {
		case c == '\n':
			s.line++
			s.at++
		case c == ' ' || c == '\r':
			s.at++
		case c == '\t':
			return false, errorAt(s.line, "a tab: NCCL takes spaces alone")
		case c != '<':
			return false, errorAt(s.line, "text between tags: NCCL takes none")
		case s.hasPrefix("<!--"):
			if err := s.skipComment(); err != nil {
				return false, err
			}
		case s.hasPrefix("<?"):
			return false, errorAt(s.line, "an XML header, or another <?…?>: NCCL takes none, the file begins with <system")
		case s.hasPrefix("<!"):
			return false, errorAt(s.line, "a DOCTYPE, or another <!…>: NCCL takes none, the file begins with <system")
		default:
			return false, nil
		}
	}
	return true, nil
}

func (s *scanner) hasPrefix(text string) bool { return bytes.HasPrefix(s.text[s.at:], []byte(text)) }

func (s *scanner) skipComment() error {
	end := bytes.Index(s.text[s.at:], []byte("-->"))
	if end < 0 {
		return errorAt(s.line, "a comment is never closed")
	}
	s.line += bytes.Count(s.text[s.at:s.at+end], []byte{'\n'})
	s.at += end + len("-->")
	return nil
}

func (s *scanner) readClosingTag() (string, error) {
	s.at += len("</")
	name, err := s.readWord()
	if err != nil {
		return "", err
	}
	if name == "" || !s.hasPrefix(">") {
		return "", errorAt(s.line, "a closing tag is </NAME>, and nothing else is in it")
	}
	s.at++
	return name, nil
}

// readOpeningTag reads an opening tag; open says that it wants a closing one.
func (s *scanner) readOpeningTag() (e element, open bool, err error) {
	s.at++
	e = element{line: s.line, attributes: map[string]string{}}
	if e.name, err = s.readWord(); err != nil {
		return e, false, err
	}
	if e.name == "" {
		return e, false, errorAt(s.line, "a tag without a name")
	}
	for s.hasPrefix(" ") {
		s.at++
		if s.hasPrefix(">") || s.hasPrefix("/>") {
			break // a space before the end of the tag is harmless
		}
		if err := s.readAttribute(&e); err != nil {
			return e, false, err
		}
	}
	switch {
	case s.hasPrefix("/>"):
		s.at += len("/>")
		return e, false, nil
	case s.hasPrefix(">"):
		s.at++
		return e, true, nil
	case s.hasPrefix("\n"), s.hasPrefix("\r"):
		return e, false, errorAt(s.line, "<%s> goes on in the next line: NCCL wants a tag on one", e.name)
	case s.hasPrefix("\t"):
		return e, false, errorAt(s.line, "a tab in <%s>: NCCL takes spaces alone", e.name)
	case s.at == len(s.text):
		return e, false, errorAt(s.line, "the file ends within <%s>", e.name)
	}
	return e, false, errorAt(s.line, "<%s> has a %q where a space or its end would be", e.name, s.text[s.at])
}

// readAttribute reads NAME="VALUE", or a name without a value, which NCCL takes too.
func (s *scanner) readAttribute(e *element) error {
	name, err := s.readWord()
	if e.count++; err != nil {
		return err
	}
	switch {
	case s.at == len(s.text):
		return errorAt(s.line, "the file ends within <%s>", e.name)
	case s.hasPrefix("\n"), s.hasPrefix("\r"):
		return errorAt(s.line, "<%s> goes on in the next line: NCCL wants a tag on one", e.name)
	case s.hasPrefix("\t"):
		return errorAt(s.line, "a tab in <%s>: NCCL takes spaces alone", e.name)
	case e.count > maxAttrs:
		return errorAt(s.line, "<%s> has more than %d attributes, with spaces too many", e.name, maxAttrs)
	case s.hasPrefix(" "), s.hasPrefix(">"), s.hasPrefix("/>"):
		return nil
	case name == "":
		return errorAt(s.line, "<%s> has a %q where an attribute would be", e.name, s.text[s.at])
	case !s.hasPrefix(`="`) && !s.hasPrefix(`='`):
		return errorAt(s.line, "%s of <%s> has no value in quotes right behind it", name, e.name)
	}
	value, err := s.readQuoted(name)
	if _, twice := e.attributes[name]; !twice { // NCCL uses the first of duplicate attributes
		e.attributes[name] = value
	}
	return err
}

// readQuoted reads ="VALUE". NCCL decodes no entities.
func (s *scanner) readQuoted(name string) (string, error) {
	quote := s.text[s.at+1]
	s.at += 2
	end := bytes.IndexByte(s.text[s.at:], quote)
	if end < 0 {
		return "", errorAt(s.line, "the value of %s has no end", name)
	}
	value := s.text[s.at : s.at+end]
	if len(value) >= maxText {
		return "", errorAt(s.line, "the value of %s has more than %d bytes", name, maxText-1)
	}
	s.line += bytes.Count(value, []byte{'\n'})
	s.at += end + 1
	return string(value), nil
}

// readWord reads up to a character that ends a name.
func (s *scanner) readWord() (string, error) {
	end := bytes.IndexAny(s.text[s.at:], " >/=\n\r\t<\"'")
	if end < 0 {
		end = len(s.text) - s.at
	}
	if end >= maxText {
		return "", errorAt(s.line, "a name of more than %d bytes", maxText-1)
	}
	word := string(s.text[s.at : s.at+end])
	s.at += end
	return word, nil
}
