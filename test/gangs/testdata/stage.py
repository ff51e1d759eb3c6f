"""One stage of a pipeline: decode, infer or encode, by the role that berth says.

Frames go through /dev/shm: a file is complete once it has its name. Each stage says what
accelerators it sees, for the test to hold that against what it asked for.
"""
import glob
import os
import sys
import time

import numpy

FRAMES, SHAPE, PATIENCE = 24, (256, 256, 3), 60
role, index = os.environ["BERTH_ROLE"], int(os.environ["BERTH_ROLE_RANK"])


def write(name, frame):
    part = f"/dev/shm/.{name}.{role}{index}"
    numpy.save(part, frame)
    os.rename(part + ".npy", f"/dev/shm/{name}.npy")


def read(name):
    path, end = f"/dev/shm/{name}.npy", time.monotonic() + PATIENCE
    while not os.path.exists(path):
        if time.monotonic() > end:
            sys.exit(f"{role} {index}: no {name}")
        time.sleep(0.005)
    frame = numpy.load(path)
    os.unlink(path)
    return frame


def frame(number):
    return (numpy.arange(numpy.prod(SHAPE), dtype=numpy.uint32).reshape(SHAPE) * (number + 1)).astype(numpy.uint8)


nodes = sorted(os.path.basename(p) for p in glob.glob("/dev/nvidia[0-9]*"))
print(f"{role} {index} sees {','.join(nodes) or 'nothing'}", flush=True)
if role == "decode":
    for n in range(FRAMES):
        write(f"decoded-{n}", frame(n))
elif role == "infer":
    for n in range(index, FRAMES, int(os.environ["WORLD_SIZE"])):
        write(f"inferred-{n}", numpy.invert(read(f"decoded-{n}")))
        print(f"infer {index} has done frame {n}", flush=True)
else:
    for n in range(FRAMES):
        if not numpy.array_equal(read(f"inferred-{n}"), numpy.invert(frame(n))):
            sys.exit(f"frame {n} was changed on its way")
    print(f"encoded {FRAMES} frames", flush=True)
