"""Trains a small model with DistributedDataParallel, and prints the last loss.

Plain PyTorch: all that it knows of the others it has from the environment. Each rank
takes its part of one global batch, so that the loss depends on the data alone, and not
on how many ranks there are.
"""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH = 12, 48, 16

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
assert rank == int(os.environ["RANK"]) and size == int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
inputs = torch.randn(BATCH, WIDTH)
wanted = torch.sin(inputs.sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1))
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

share = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
for step in range(STEPS):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[share]), wanted[share])
    loss.backward()
    optimizer.step()

mean = loss.detach().clone()
dist.all_reduce(mean)
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
every = [torch.empty_like(weights) for _ in range(size)]
dist.all_gather(every, weights)
assert all(torch.equal(w, weights) for w in every), "the ranks have drifted apart"
print(f"rank {rank} of {size}: loss {mean.item() / size:.9f}", flush=True)
dist.destroy_process_group()
