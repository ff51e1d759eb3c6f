package everyday

// pytorch is an image with Python.
const pytorch = "nvcr.io/nvidia/pytorch:25.01-py3"

// trainer is a task that runs until it is stopped.
const trainer = `berth run -d --name trainer --gpus 2 ` + pytorch + ` sh -c 'trap "exit 0" TERM; echo epoch 1; while :; do sleep 0.1; done' >/dev/null
soon sh -c 'berth logs trainer | grep epoch'`

// ended is a task that has ended.
const ended = `berth run -d --name trainer ` + pytorch + ` echo epoch 1 >/dev/null; berth wait trainer >/dev/null`

// pulled brings an image.
const pulled = `berth pull -q ` + pytorch + ` >/dev/null`

// archive is train.tar, as docker save writes one.
const archive = sandbox + ` && tar -C sandbox -cf layer.tar . && printf '{"os":"linux","architecture":"%s","rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
$(dpkg --print-architecture) $(sha256sum layer.tar | cut -d ' ' -f 1) >config.json && echo '[{"Config":"config.json","RepoTags":["train:latest"],"Layers":["layer.tar"]}]' >manifest.json &&
tar -cf train.tar manifest.json config.json layer.tar`

var dockerHabits = []habit{
	// GPUs.
	{typed: `docker run --rm --gpus all nvidia/cuda:12.6.0-base-ubuntu24.04 nvidia-smi -L | wc -l`, want: "8"},
	{
		typed: `docker run --rm --gpus 2 ubuntu ls /dev | grep '^nvidia[0-9]'`, before: trainer, want: "nvidia2\nnvidia3",
		differs: "docker gives GPUs 0 and 1 to each container that asks for two; berth gives two that are free, and no other task gets them until this one ends",
	},
	{typed: `docker run --rm --gpus '"device=0,1"' ubuntu nvidia-smi -L | wc -l`, want: "2"},
	{typed: `docker run --rm --gpus device=3 ubuntu ls /dev | grep '^nvidia[0-9]'`, want: "nvidia3"},
	{
		typed: `docker run --rm --gpus 'all,capabilities=utility' ubuntu nvidia-smi -L`, want: "GPU 0: …",
		instead: `berth run --rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=utility ubuntu nvidia-smi -L`,
	},
	{typed: `docker run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi -L | wc -l`, want: "8"},
	{typed: `docker run --rm --runtime nvidia --gpus all ubuntu nvidia-smi -L | wc -l`, want: "8"},
	{
		typed: `docker run --rm --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 ubuntu nvidia-smi -L`, want: "GPU 0: …GPU 1: …",
		instead: `berth run --rm --gpus device=0,1 ubuntu nvidia-smi -L`,
	},
	{
		typed: `docker run --rm -e NVIDIA_VISIBLE_DEVICES=all ubuntu nvidia-smi`, want: "…H100…",
		instead: `berth run --rm --gpus all ubuntu nvidia-smi`,
	},
	{typed: `docker run --rm --gpus all -e CUDA_VISIBLE_DEVICES=0,1 ubuntu sh -c 'echo $CUDA_VISIBLE_DEVICES'`, want: "0,1"},
	{
		typed: `docker run --rm --device /dev/nvidia0 --device /dev/nvidiactl --device /dev/nvidia-uvm ubuntu ls /dev/nvidia0`, want: "/dev/nvidia0",
		instead: `berth run --rm --gpus device=0 ubuntu ls /dev/nvidia0`,
	},
	{
		typed: `docker run --rm --gpus 9 ubuntu true`, want: "…H100…",
		instead: `berth gpus`,
	},
	// Training and serving.
	{typed: `docker run --gpus all -it --rm --ipc=host --ulimit memlock=-1 --ulimit stack=67108864 ` + pytorch + ` python train.py`, want: "python train.py: 8 GPUs in /workspace"},
	{typed: `docker run --gpus 1 -it --rm -v $PWD:/workspace -w /workspace ` + pytorch + ` bash -c 'ls train.py; python train.py'`, want: "train.py\npython train.py: 1 GPUs in /workspace"},
	{typed: `docker run --rm --shm-size=8g ubuntu df -h /dev/shm | tail -n 1 | awk '{print $2}'`, want: "8.0G"},
	{typed: `docker run --rm -u $(id -u):$(id -g) -v "$(pwd)":/work -w /work ubuntu touch out && stat -c %u out`, want: "0"},
	{typed: `docker run --rm --env-file env.list -e EPOCHS=3 ubuntu sh -c 'echo $WANDB_MODE $EPOCHS'`, want: "offline 3"},
	{typed: `docker run --rm --mount type=bind,source="$(pwd)"/data,target=/data,readonly ubuntu cat /data/a`, want: "one"},
	{
		typed: `docker run --rm -v ~/.cache/huggingface:/root/.cache/huggingface ubuntu ls -A /root/.cache`, want: "huggingface",
		instead: `mkdir -p ~/.cache/huggingface && berth run --rm -v ~/.cache/huggingface:/root/.cache/huggingface ubuntu ls -A /root/.cache`,
	},
	{
		typed: `docker run --rm -v weights:/models ubuntu ls /models`, want: "m.bin",
		instead: `berth run --rm -v ./models:/models ubuntu ls /models`,
	},
	{
		typed:   `docker run --gpus all --rm -p 8888:8888 ` + pytorch + ` jupyter lab`,
		want:    "berth: the task shares the host's network: its port 8888 is the host's, at all addresses that it listens on\njupyter lab: 8 GPUs in /workspace",
		differs: "a task shares the host's network, so no port is mapped: the same port reaches it, and a line says so",
	},
	{
		typed:   `docker run --gpus all --rm -p 8080:80 ghcr.io/huggingface/text-generation-inference python serve.py`,
		want:    "berth: the task shares the host's network: …\npython serve.py 8080: 8 GPUs in /workspace",
		instead: `berth run --gpus all --rm -p 8080:8080 ghcr.io/huggingface/text-generation-inference python serve.py 8080`,
	},
	{typed: `docker run --rm --network host ubuntu readlink /proc/self/ns/net`, after: `readlink /proc/self/ns/net`, want: "net:[…]\nnet:[…]"},
	{typed: `docker run -d --gpus 1 --restart unless-stopped --name server vllm/vllm-openai sleep 60 && docker ps -q | wc -l`, want: "ID\n1"},
	{typed: `docker run --rm --cpus 2 --memory 4g --cpuset-cpus 0 ubuntu nproc`, want: "1"},
	{typed: `docker run --rm --cap-add SYS_PTRACE --security-opt seccomp=unconfined ubuntu grep CapBnd /proc/self/status`, want: "CapBnd:\t…"},
	{
		typed: `docker run --rm --privileged ubuntu ls /dev | grep -c '^nvidia[0-9]'`, want: "0",
		differs: "--privileged adds no device: GPUs come with --gpus",
	},
	{typed: `docker run -it --rm --entrypoint bash vllm/vllm-openai -c 'python train.py'`, want: "python train.py: 0 GPUs in /workspace"},
	{typed: `docker run --rm --init --hostname node1 ubuntu hostname`, want: "node1"},
	{
		typed: `docker run --name job ubuntu true; docker ps -aq | wc -l`, want: "0",
		differs: "a task in the foreground is removed at its end, as with --rm; --rm=false keeps it",
	},
	// Tasks that run.
	{typed: `docker exec -it trainer bash -c 'python eval.py'`, before: trainer, want: "python eval.py: 2 GPUs in /workspace"},
	{typed: `docker logs -f --tail 100 trainer`, before: ended, want: "epoch 1"},
	{typed: `docker logs --since 10m trainer 2>&1 | tail -n 1`, before: trainer, want: "epoch 1"},
	{
		typed: `docker ps`, before: trainer, want: "ID … IMAGE … COMMAND … CREATED … STATUS … GPUS … NAME\nID  " + pytorch + " …up … 0,1 … trainer",
		differs: "the column GPUS has the task's devices in the place of ports",
	},
	{typed: `docker ps -a | grep -c trainer`, before: ended, want: "1"},
	{
		typed: `docker ps --format 'table {{.Names}}\t{{.Image}}\t{{.Status}}'`, before: trainer, want: "NAMES … IMAGE … STATUS\ntrainer … " + pytorch + " … up …",
		differs: "the status is up 3s where docker prints Up 3 seconds",
	},
	{typed: `docker inspect -f '{{.State.Status}}' trainer`, before: trainer, want: "running"},
	{typed: `docker stop trainer`, before: trainer, want: "trainer"},
	{typed: `docker stop $(docker ps -q) && docker rm $(docker ps -aq)`, before: trainer, want: "ID\nID"},
	{typed: `docker kill trainer`, before: trainer, want: "trainer"},
	{typed: `docker rm -f trainer`, before: trainer, want: "trainer"},
	{typed: `docker stats --no-stream | grep -c trainer`, before: trainer, want: "1"},
	{
		typed: `docker inspect trainer`, before: trainer, want: "[…trainer…]",
		differs: "the JSON has fields of berth's own; inspect -f takes docker's",
	},
	{
		typed: `docker restart trainer`, before: trainer, want: "trainer\nID",
		instead: `berth rm -f trainer && berth run -d --restart always ` + pytorch + ` sleep 60`,
	},
	{
		typed: `docker start -ai trainer`, before: ended, want: "trainer\nepoch 2",
		instead: `berth rm -f trainer && berth run ` + pytorch + ` echo epoch 2`,
	},
	{typed: `docker top trainer`, before: trainer, want: "…trainer…", instead: `berth stats --no-stream trainer`},
	{
		typed: `docker cp trainer:/etc/hostname .`, before: trainer, after: "cat hostname", want: "trainer",
		instead: `berth exec trainer cat /etc/hostname > hostname`,
	},
	{
		typed: `docker cp train.py trainer:/workspace/`, before: trainer, after: "berth exec trainer cat train.py", want: `print("train")`,
		instead: `berth exec -i trainer tee /workspace/train.py < train.py >/dev/null`,
	},
	// Images.
	{typed: `echo "$NGC_API_KEY" | docker login nvcr.io --username '$oauthtoken' --password-stdin`, before: "NGC_API_KEY=secret", want: "…Login Succeeded…"},
	{typed: `docker pull ` + pytorch, want: "…25.01-py3"},
	{typed: `docker images | grep -c pytorch`, before: pulled, want: "1"},
	{typed: `docker image ls`, before: pulled, want: "…pytorch…", instead: `berth images`},
	{typed: `docker rmi ` + pytorch, before: pulled, want: "…"},
	{
		typed: `docker build -t train .`, want: "…nvcr.io/nvidia/pytorch:25.01-py3",
		instead: `berth pull ` + pytorch,
	},
	{
		typed: `docker load -i train.tar`, before: archive, want: "bin…",
		instead: `berth run docker-archive:train.tar ls /`,
	},
	{typed: `docker system prune -af`, before: pulled, after: "berth pull -q ubuntu >/dev/null", want: "…freed …"},
	// The rest.
	{
		typed: `docker compose up -d`, want: "ID",
		instead: `berth run -d --restart always ` + pytorch + ` sleep 60`,
	},
	{typed: `docker volume create weights`, want: "m.bin", instead: `berth run -v ./models:/models ubuntu ls /models`},
	{typed: `docker network create train`, want: "lo", instead: `berth run --network none ubuntu ls /sys/class/net`},
	{typed: `nvidia-smi`, tried: `berth nvidia-smi`, want: "…H100…", instead: `berth gpus`},
}
