"""Reads what each framework reads of its environment, as it does, and then talks.

Run by every rank of a gang. It prints one line for each framework; what is wrong ends it.
"""
import http.client
import json
import os
import re
import socket
import sys
import time

env = os.environ
rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
PATIENCE = 60


def split(address):
    host, port = address.rsplit(":", 1)
    return host.strip("[]"), int(port)


def listen(port, host=""):
    """A listener on every address, as gRPC servers have it."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() and not host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=family == socket.AF_INET6)


def reach(host, port):
    """Connects, and waits for whoever is late."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port), timeout=PATIENCE)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def tensorflow():
    """A server at the address of its own task, and each finds all the others."""
    config = json.loads(env.get("TF_CONFIG", "{}"))
    kind, index = str(config["task"]["type"]), int(config["task"]["index"])
    tasks = config["cluster"][kind]
    assert len(tasks) == size and index == rank and len(set(tasks)) == size, config
    with listen(split(tasks[index])[1]) as server:
        others = [reach(*split(a)) for a in tasks]
        met = [server.accept()[0] for _ in tasks]
        for c in others:
            c.sendall(bytes([rank]))
        # Whoever has closed his listener has met everybody.
        assert sorted(c.recv(1)[0] for c in met) == list(range(size))
    return f"{kind} {index} of {len(tasks)}"


def deepspeed():
    """It looks for MPI unless all of these are there, and elsewhere on two platforms."""
    needed = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"]
    assert all(name in env for name in needed), "it would import mpi4py"
    assert "AZUREML_EXPERIMENT_ID" not in env and "SM_TRAINING_ENV" not in env
    return f"local rank {int(env['LOCAL_RANK'])}"


def jax():
    """The first process serves; address and devices are read, the numbers are told."""
    address = env.get("JAX_COORDINATOR_ADDRESS")
    count, mine = int(env["JAX_NUM_PROCESSES"]), int(env["JAX_PROCESS_ID"])
    assert 0 <= mine < count == size
    devices = env.get("JAX_LOCAL_DEVICE_IDS")
    devices = list(map(int, devices.split(","))) if devices else None
    host, port = split(address)
    if mine == 0:
        with listen(int(address.rsplit(":", 1)[1])) as server:
            met = [server.accept()[0] for _ in range(count - 1)]
            assert sorted(c.recv(1)[0] for c in met) == list(range(1, count))
            for c in met:
                c.sendall(b"!")
    else:
        c = reach(host, port)
        c.sendall(bytes([mine]))
        assert c.recv(1) == b"!"
    # No manager of processes shows, which would be asked before the address is taken.
    for name in env:
        assert not re.match(r"SLURM_|OMPI_|PMIX_|PMI_|PRTE_", name), name
    return f"process {mine} of {count}, devices {devices}"


def ask(method, path, body=None):
    c = http.client.HTTPConnection(env["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"]), timeout=PATIENCE)
    c.request(method, path, body)
    answer = c.getresponse()
    value = answer.read()
    c.close()
    return answer.status, value


def rendezvous(scope, place, count, word):
    """What gloo does with the store: all write, all read all, all say that they have finished."""
    assert ask("PUT", f"/{scope}/{place}", f"{word} {place}")[0] == 200
    for other in range(count):
        end = time.monotonic() + PATIENCE
        while (got := ask("GET", f"/{scope}/{other}"))[0] == 404:
            assert time.monotonic() < end, f"{scope}: {other} never came"
            time.sleep(0.01)
        assert got == (200, f"{word} {other}".encode()), got
    assert ask("DELETE", f"/{scope}/{place}")[0] == 200


def horovod():
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in env:
        assert not any(name.startswith("HOROVOD_") for name in env), "each would wait for ever"
        return "not served"
    assert env["HOROVOD_CONTROLLER"] == env["HOROVOD_CPU_OPERATIONS"] == "gloo"
    if iface := env.get("HOROVOD_GLOO_IFACE"):
        assert iface in [name for _, name in socket.if_nameindex()], iface
    n = {k: int(env["HOROVOD_" + k]) for k in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")}
    assert n["RANK"] == rank and n["SIZE"] == size
    for word in ("first", "second"):  # shutdown and init again
        rendezvous("global", n["RANK"], n["SIZE"], word)
        rendezvous("local_" + env["HOROVOD_HOSTNAME"], n["LOCAL_RANK"], n["LOCAL_SIZE"], word)
        rendezvous(f"cross_{n['LOCAL_RANK']}", n["CROSS_RANK"], n["CROSS_SIZE"], word)
    return f"{n['RANK']} of {n['SIZE']}, local {n['LOCAL_RANK']} of {n['LOCAL_SIZE']}"


for read in (deepspeed, tensorflow, jax, horovod):
    print(f"{read.__name__}: {read()}", flush=True)
for name in env:
    assert not name.startswith("TORCHELASTIC_"), name
    assert not re.match(r"NCCL_(P2P_DISABLE|SHM_DISABLE|IB_DISABLE|ALGO|PROTO|IB_GID_INDEX|CROSS_NIC|IB_TC|IB_SL|NET_GDR_LEVEL|TOPO_FILE)$", name), name
print("the contracts hold", flush=True)
sys.exit(0)
