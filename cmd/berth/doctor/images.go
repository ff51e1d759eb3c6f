package doctor

import (
	"path/filepath"

	"github.com/berth-gpu/berth/launcher/image"
)

// images: their names can be read.
func (e *exam) images(r *result) error {
	before := len(r.findings)
	damaged, err := image.Store{Dir: filepath.Join(e.Config.Data, "images")}.Damaged()
	if err != nil {
		return err
	}
	for _, path := range damaged {
		r.warn(e.berth("prune")+"; then pull that image again", "%s can't be read, and the image that had the name is gone", path)
	}
	r.fine(before, "the name of each image can be read")
	return nil
}
