package backend

import (
	"context"
	"os"

	"github.com/berth-gpu/berth/launcher/control"
	"github.com/berth-gpu/berth/launcher/engine"
	"github.com/berth-gpu/berth/launcher/sif"
)

// Verify verifies the signatures of a SIF file, which is open in this process: see signature.Verify, and with v.Covered signature.Check. With an error,
// it returns the verdicts until then.
func Verify(ctx context.Context, f *os.File, v sif.Verification) (verdicts []sif.Verdict, err error) {
	program, err := control.FindProgram(containerdProgram)
	if err != nil {
		return nil, err
	}
	e := Engine{program: program, file: f}
	return verdicts, e.Call(ctx, engine.Request{Verb: "verify", Verification: &v}, &verdicts, nil)
}

// ChangeKeyring changes a keyring and returns its keys: see signature.ChangeKeyring.
func ChangeKeyring(ctx context.Context, c sif.KeyringChange) (keys []sif.Key, err error) {
	program, err := control.FindProgram(containerdProgram)
	if err != nil {
		return nil, err
	}
	e := Engine{program: program}
	return keys, e.Call(ctx, engine.Request{Verb: "keyring", Keyring: &c}, &keys, nil)
}
