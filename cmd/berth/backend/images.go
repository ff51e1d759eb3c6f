package backend

import (
	"context"

	"github.com/urfave/cli/v2"

	"github.com/berth-gpu/berth"
	"github.com/berth-gpu/berth/cmd/berth/verb"
	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/image"
)

// ImageStore returns the store of berth's own images.
func ImageStore(conf berth.Config) image.Store {
	return image.StoreIn(conf.TaskData())
}

// ImageStores returns all stores of this user's images: those of tasks, and those of berth apptainer.
func ImageStores(conf berth.Config) image.Stores {
	return image.StoresIn(conf.TaskData())
}

// NewFetcher returns the engine whose program pulls images into a store of berth's own.
func NewFetcher(c *cli.Context, conf berth.Config, store image.Store) (*Engine, error) {
	program, err := control.FindProgram(containerdProgram)
	if err != nil {
		return nil, err
	}
	return &Engine{program: program, Request: engine.Request{Verb: "fetch", Store: store.Dir, Access: registryAccess(conf, c.App.Version)}}, nil
}

// NewImageFetcher returns a function that pulls images for tasks into the store
// (launcher.Options.Fetch).
func NewImageFetcher(c *cli.Context, conf berth.Config, store image.Store, progress func(image.Progress)) func(context.Context, string, image.Search) error {
	return func(ctx context.Context, ref string, how image.Search) error {
		e, err := NewFetcher(c, conf, store)
		if err != nil {
			return err
		}
		req := e.Request
		req.Image, req.Search = TrimScheme(ref), how
		return e.Call(ctx, req, nil, progress)
	}
}

// TrimScheme removes docker://, which skopeo and Apptainer write before names of images.
func TrimScheme(name string) string {
	const scheme = "docker://"
	if len(name) > len(scheme) && name[:len(scheme)] == scheme {
		return name[len(scheme):]
	}
	return name
}

// ReadImages returns the images of berth or of the engine. unread reports those that cannot be read.
func ReadImages(c *cli.Context, conf berth.Config) (all []image.Summary, unread, err error) {
	other, err := ChooseEngine(c, conf)
	if err != nil || other == nil {
		all, unread = ImageStores(conf).List()
		return all, unread, err
	}
	if err := verb.NeedRoot(); err != nil {
		return nil, nil, err
	}
	req := other.Request
	req.Verb = "images"
	return all, nil, other.Call(c.Context, req, &all, nil)
}

// PlatformFlag is --platform of verbs that pull.
func PlatformFlag() cli.Flag {
	return &cli.StringFlag{Name: "platform", Usage: "an image for `OS/ARCH`, such as linux/arm64, instead of this machine's"}
}
