package everyday

var slurmHabits = []habit{
	{typed: `srun --gres=gpu:2 python train.py`, tried: `berth srun --gres=gpu:2 python train.py`, want: "python train.py: 2 GPUs…", instead: `berth run --gpus 2 ` + pytorch + ` python train.py`},
	{typed: `srun --gres=gpu:2 python train.py`, tried: `berth run --gres=gpu:2 ` + pytorch + ` python train.py`, want: "python train.py: 2 GPUs…", instead: `berth run --gpus 2 ` + pytorch + ` python train.py`},
	{typed: `srun -G h100:2 python train.py`, tried: `berth run -G h100:2 ` + pytorch + ` python train.py`, want: "python train.py: 2 GPUs…"},
	{
		typed: `srun -n 4 --gpus-per-task=1 python train.py`, tried: `berth run -n 4 --gpus-per-task=1 ` + pytorch + ` python train.py`,
		want: "…python train.py: …", instead: `berth run -n 4 --gpus-per-rank 1 ` + pytorch + ` python train.py`,
	},
	{
		typed: `srun --gres=gpu:1 --pty bash`, tried: `berth run --gpus 1 --pty ` + pytorch + ` bash -c "python train.py"`,
		want: "python train.py: 1 GPUs…", instead: `berth run --gpus 1 -it ` + pytorch + ` bash -c "python train.py"`,
	},
	{
		typed: `srun --mem=2G --cpus-per-task=8 python train.py`, tried: `berth run --mem=2G --cpus-per-task=8 ` + pytorch + ` python train.py`,
		want: "python train.py: 0 GPUs…", instead: `berth run -m 2G --cpus 8 ` + pytorch + ` python train.py`,
	},
	{
		typed: `srun -c 8 python train.py`, tried: `berth run -c 8 ` + pytorch + ` python train.py`, want: "python train.py: 0 GPUs…",
		differs: "-c is docker's: the weight of the task among others that want the same CPUs; --cpus 8 limits CPUs",
	},
	{
		typed: `srun -t 01:00:00 python train.py`, tried: `berth run -t 01:00:00 ` + pytorch + ` python train.py`,
		want: "python train.py: 0 GPUs…", instead: `berth run --timeout 1h ` + pytorch + ` python train.py`,
	},
	{
		typed: `srun -p gpu python train.py`, tried: `berth run -p gpu ` + pytorch + ` python train.py`,
		want: "python train.py: 0 GPUs…", instead: `berth run ` + pytorch + ` python train.py`,
	},
	{
		typed: `srun --container-image=nvcr.io#nvidia/pytorch:25.01-py3 python train.py`, tried: `berth run --container-image=nvcr.io#nvidia/pytorch:25.01-py3 python train.py`,
		want: "python train.py: 0 GPUs…", instead: `berth run ` + pytorch + ` python train.py`,
	},
	{
		typed: `srun --jobid=4711 --overlap --pty bash`, tried: `berth run --jobid=trainer --overlap --pty bash`, before: trainer,
		want: "python eval.py: 2 GPUs…", instead: `berth exec -it trainer bash -c "python eval.py"`,
	},
	{
		typed: `sbatch train.sh`, tried: `berth sbatch train.sh`, after: `soon sh -c 'berth logs $(berth ps -aq) | grep python' && berth logs $(berth ps -aq)`,
		want: "ID\npython train.py: 2 GPUs in HOME", instead: `berth run -d --wait=1h --gpus 2 -v $PWD:$PWD -w $PWD ` + pytorch + ` bash train.sh`,
	},
	{
		typed: `sbatch -J trainer -o train.log --wrap 'python train.py'`, tried: `berth run -d -J trainer -o train.log ` + pytorch + ` sh -c 'python train.py'`,
		want: "ID", instead: `berth run -d --name trainer ` + pytorch + ` sh -c 'python train.py'`,
	},
	{
		typed: `sbatch --dependency=afterok:4711 train.sh`, tried: `berth run --dependency=afterok:trainer ` + pytorch + ` python eval.py`, before: ended,
		want: "0\npython eval.py: 0 GPUs…", instead: `berth wait trainer && berth run ` + pytorch + ` python eval.py`,
	},
	{typed: `squeue --me`, tried: `berth squeue --me`, before: trainer, want: "…trainer…", instead: `berth leases`},
	{typed: `scancel 4711`, tried: `berth scancel trainer`, before: trainer, want: "trainer", instead: `berth stop trainer`},
	{typed: `salloc --gres=gpu:2`, tried: `berth salloc --gres=gpu:2`, want: "GPU-…,GPU-…", instead: `berth alloc 2 bash -c 'echo $CUDA_VISIBLE_DEVICES'`},
	{typed: `salloc -G 2 python train.py`, tried: `berth alloc -G 2 sh -c 'echo held'`, want: "held", instead: `berth alloc 2 sh -c 'echo held'`},
	{typed: `sinfo`, tried: `berth sinfo`, want: "…H100…", instead: `berth gpus`},
	{typed: `sacct -j 4711`, tried: `berth sacct -j trainer`, before: ended, want: "…trainer…", instead: `berth ps -a`},
}
