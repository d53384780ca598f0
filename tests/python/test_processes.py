"""Threads, forks, leaks, and imports without anything else."""
import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import flexc
from conftest import Reference, close


def make(seed=0):
    random = np.random.default_rng(seed)
    return [random.standard_normal((1, 2, 16, 8)).astype(np.float32) for _ in range(3)]


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_import_alone():
    code = ("import sys, flexc\n"
            "assert not {'torch', 'jax', 'numpy'} & set(sys.modules)\n"
            "print(flexc.__version__)")
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_threads():
    kernel = flexc.compile("score + h", dtype="f32", head_dim=8, device="cpu")
    problems = []

    def work(seed):
        q, k, v = make(seed)
        wanted = Reference(q, k, v, "score + h").out
        plan = kernel.plan(q, k, v)
        try:
            for _ in range(50):
                close(plan.forward(q, k, v)[0], wanted)
            flexc.compile(f"score + {seed}", dtype="f32", head_dim=8, device="cpu", backward=False, disk_cache=False)
        except BaseException as problem:
            problems.append(problem)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_python_runs_while_compiling():
    ticks = []
    done = threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)
    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    flexc.compile("tanh(score) * 0.123 + sin(score)", dtype="f32", head_dim=64, device="cpu", disk_cache=False)
    ended = time.perf_counter()
    done.set()
    thread.join()
    assert sum(started < at < ended for at in ticks) > 3


def test_fork():
    kernel = flexc.compile("score", dtype="f32", head_dim=8, device="cpu")
    q, k, v = make()
    wanted = kernel.forward(q, k, v)[0].copy()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if np.array_equal(kernel.forward(q, k, v)[0], wanted) else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_end_while_compiling():
    code = ("import ctypes, sys, threading, time, flexc\n"
            "def work(first):\n"
            "    for i in range(first, 10000, 4):\n"
            "        flexc.compile(f'tanh(score) * 1.{i}', dtype='f32', head_dim=16, device='cpu', disk_cache=False)\n"
            "for first in range(4):\n"
            "    threading.Thread(target=work, args=(first,), daemon=True).start()\n"
            "time.sleep(0.2)\n"
            # Once the interpreter has ended, for as many seconds as the status says.
            "libc = ctypes.CDLL(None)\n"
            "libc.on_exit(ctypes.cast(libc.sleep, ctypes.c_void_p), None)\n"
            "sys.exit(1)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("what", ["forward", "plan", "error"])
def test_memory_stays(what):
    kernel = flexc.compile("score + t[h]", dtype="f32", head_dim=8, device="cpu", buffers={"t": "f32[H] grad"})
    q, k, v = make()
    buffers = {"t": np.zeros(2, np.float32)}
    plan = kernel.plan(q, k, v, buffers)
    out, lse = plan.forward(q, k, v, buffers)

    def once():
        if what == "forward":
            plan.forward(q, k, v, buffers)
            plan.backward(q, k, v, out, lse, out, buffers)
        elif what == "plan":
            kernel.plan(q, k, v, buffers)
        else:
            try:
                plan.forward(q, k, v, {"t": np.zeros(3, np.float32)})
            except flexc.Error:
                pass
    for _ in range(1000):
        once()
    before = resident()
    for _ in range(10000):
        once()
    # Half a kilobyte for each call.
    assert resident() - before < 5 << 20
