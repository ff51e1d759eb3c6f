package berth

import (
	"regexp"
	"testing"
)

func TestStepCgroup(t *testing.T) {
	for group, step := range map[string]string{
		"/system.slice/slurmstepd.scope/job_7/step_0/user/task_0":           "/system.slice/slurmstepd.scope/job_7/step_0",
		"/system.slice/node0_slurmstepd.scope/job_7/step_batch/user/task_0": "/system.slice/node0_slurmstepd.scope/job_7/step_batch",
		"/system.slice/slurmstepd.scope/job_7/step_extern/user":             "/system.slice/slurmstepd.scope/job_7/step_extern",
		"/system.slice/slurmstepd.scope/job_7/step_0/slurm":                 "",
		"/system.slice/slurmd.service":                                      "",
		"/user.slice/user-4711.slice/job_a/step_0/user":                     "",
		"/": "",
	} {
		var got string
		if found := regexp.MustCompile(stepCgroup).FindStringSubmatch(group); found != nil {
			got = found[1]
		}
		if got != step {
			t.Errorf("%s is in step %q, not %q", group, got, step)
		}
	}
}
