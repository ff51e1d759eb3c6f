package everyday

// sandbox is a root file system in a directory.
const sandbox = `mkdir -p sandbox/bin && cp $(command -v busybox) sandbox/bin/ && ln -s busybox sandbox/bin/sh && ln -s busybox sandbox/bin/ls`

var apptainerHabits = []habit{
	// GPUs.
	{typed: `apptainer exec --nv pytorch.sif python train.py`, want: "python train.py: 1 GPUs in /workspace", instead: `berth run --gpus 1 ` + pytorch + ` python train.py`},
	{typed: `apptainer run --nv docker://` + pytorch + ` python train.py`, want: "python train.py: 1 GPUs in /workspace", instead: `berth run --gpus 1 docker://` + pytorch + ` python train.py`},
	{typed: `apptainer shell --nv pytorch.sif`, want: "python train.py: 1 GPUs in /workspace", instead: `berth run -it --gpus 1 ` + pytorch + ` bash -c 'python train.py'`},
	{typed: `CUDA_VISIBLE_DEVICES=0,1 apptainer exec --nv pytorch.sif python train.py`, want: "python train.py: 2 GPUs in /workspace", instead: `berth run --gpus device=0,1 ` + pytorch + ` python train.py`},
	{typed: `apptainer run --nvccli docker://` + pytorch + ` python train.py`, want: "python train.py: 1 GPUs in /workspace", instead: `berth run --gpus 1 docker://` + pytorch + ` python train.py`},
	// Images.
	{typed: `apptainer run docker://ubuntu echo hello`, want: "hello"},
	{typed: `apptainer exec docker://ubuntu cat /etc/debian_version`, want: "12…", instead: `berth run docker://ubuntu cat /etc/debian_version`},
	{typed: `apptainer exec pytorch.sif python train.py`, want: "python train.py: 0 GPUs in /workspace", instead: `berth run ` + pytorch + ` python train.py`},
	{typed: `apptainer run pytorch.sif`, want: "python train.py: 0 GPUs in /workspace", instead: `berth run docker://` + pytorch + ` python train.py`},
	{typed: `apptainer run ./sandbox ls /`, before: sandbox, want: "bin…"},
	{
		typed: `apptainer pull docker://ubuntu`, want: "…docker.io/library/ubuntu:latest",
		differs: "the image goes to berth's store, and not to a file ubuntu_latest.sif; berth run finds it by its name",
	},
	{typed: `apptainer pull ubuntu.sif docker://ubuntu`, want: "…docker.io/library/ubuntu:latest", instead: `berth pull docker://ubuntu`},
	{typed: `apptainer build ubuntu.sif docker://ubuntu`, want: "…docker.io/library/ubuntu:latest", instead: `berth pull docker://ubuntu`},
	{typed: `apptainer pull library://lolcow`, want: "…docker.io/library/ubuntu:latest", instead: `berth pull docker://ubuntu`},
	{typed: `apptainer cache clean`, before: pulled, after: "berth pull -q ubuntu >/dev/null", want: "…", instead: `berth prune`},
	{typed: `apptainer sif list pytorch.sif`, before: pulled, want: "…pytorch…", instead: `berth images`},
	{typed: `apptainer verify pytorch.sif`, before: pulled, want: "…sha256:…", instead: `berth images --digests`},
	// Files.
	{typed: `apptainer exec -B $PWD/data:/data ubuntu.sif cat /data/a`, want: "one", instead: `berth run -v $PWD/data:/data ubuntu cat /data/a`},
	{typed: `apptainer run --bind /tmp docker://ubuntu ls -d /tmp`, want: "/tmp", instead: `berth run -v /tmp:/tmp docker://ubuntu ls -d /tmp`},
	{
		typed: `APPTAINER_BIND=$PWD/data:/data apptainer run docker://ubuntu ls /data`, want: "ls: cannot access '/data': No such file or directory",
		differs: "berth reads no variables of Apptainer: -v $PWD/data:/data binds the directory",
	},
	{
		typed: `apptainer run docker://ubuntu ls $PWD`, want: "ls: cannot access 'HOME': No such file or directory",
		differs: "neither the home nor the working directory is bound: -v $PWD:$PWD -w $PWD brings it in",
	},
	{typed: `apptainer run --pwd /tmp docker://ubuntu pwd`, want: "/tmp", instead: `berth run -w /tmp docker://ubuntu pwd`},
	{typed: `apptainer run --home $PWD docker://ubuntu ls train.py`, want: "train.py", instead: `berth run -v $HOME:$HOME -w $HOME docker://ubuntu ls train.py`},
	{typed: `apptainer run --no-home docker://ubuntu echo hello`, want: "hello", instead: `berth run docker://ubuntu echo hello`},
	{typed: `apptainer run --writable-tmpfs docker://ubuntu touch /opt/a`, want: "", instead: `berth run docker://ubuntu touch /opt/a`},
	{typed: `apptainer shell --writable sandbox/`, before: sandbox, want: "bin…", instead: `berth run -it ./sandbox ls /`},
	{typed: `apptainer run --overlay overlay.img docker://ubuntu touch /opt/a`, after: "ls data", want: "a", instead: `berth run -v ./data:/opt docker://ubuntu touch /opt/a`},
	// Isolation, users, environment.
	{typed: `apptainer run --containall docker://ubuntu echo hello`, want: "hello", instead: `berth run docker://ubuntu echo hello`},
	{typed: `apptainer run -c docker://ubuntu echo hello`, want: "hello", instead: `berth run docker://ubuntu echo hello`},
	{typed: `apptainer run --cleanenv docker://ubuntu sh -c 'echo $USER.'`, want: ".", instead: `berth run docker://ubuntu sh -c 'echo $USER.'`},
	{typed: `apptainer run -e docker://ubuntu echo hello`, want: "hello", instead: `berth run docker://ubuntu echo hello`},
	{typed: `apptainer run --env EPOCHS=3 docker://ubuntu sh -c 'echo $EPOCHS'`, want: "3"},
	{
		typed: `APPTAINERENV_EPOCHS=3 apptainer run docker://ubuntu sh -c 'echo $EPOCHS.'`, want: ".",
		differs: "berth reads no variables of Apptainer: -e EPOCHS=3 sets one, and -e EPOCHS passes one on",
	},
	{typed: `apptainer run --fakeroot docker://ubuntu id -u`, want: "0", instead: `berth run docker://ubuntu id -u`},
	{
		typed: `apptainer run docker://ubuntu id -un`, want: "root",
		differs: "a task runs as the image's user, here root; -u $(id -u):$(id -g) runs as the caller",
	},
	{typed: `apptainer run --net --network none docker://ubuntu ls /sys/class/net`, want: "lo", instead: `berth run --network none docker://ubuntu ls /sys/class/net`},
	// Instances.
	{typed: `apptainer instance start pytorch.sif trainer`, want: "ID", instead: `berth run -d --name trainer ` + pytorch + ` sleep 60`},
	{typed: `apptainer exec instance://trainer python eval.py`, before: trainer, want: "python eval.py: 2 GPUs in /workspace", instead: `berth exec trainer python eval.py`},
	{typed: `apptainer instance list`, before: trainer, want: "…trainer…", instead: `berth ps`},
	{typed: `apptainer instance stop trainer`, before: trainer, want: "trainer", instead: `berth stop trainer`},
}
