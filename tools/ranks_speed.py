#!/usr/bin/env python3
"""Ranks of one thread beside one rank of as many threads, on this machine: causal attention, forward and backward.

Runs of both alternate; prints the median of each, their ratio, and the load of the machine before, which should be
near 0: `tools/ranks_speed.py build/release/bin/flexc --keys 65536`.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys


def bench(command, threads):
    environment = dict(os.environ, FLEXC_THREADS=str(threads), OMPI_MCA_mpi_yield_when_idle="1")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flexc", help="the command")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--keys", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--exchange", default="auto")
    parser.add_argument("--runs", type=int, default=3, help="of each, in turn")
    options = parser.parse_args()
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        sys.exit("there is no mpirun: install an MPI, such as Debian's openmpi-bin")
    shape = f"1,{options.heads},{options.heads},{options.keys},{options.keys},{options.head_dim}"
    one = [options.flexc, "bench", "causal", "--shape", shape, "--dtype", options.dtype, "--device", "cpu",
           "--backward", "--json"]
    many = [mpirun, "--allow-run-as-root", "--bind-to", "none", "-n", str(options.ranks), *one, "--ranks", "mpi",
            "--exchange", options.exchange]
    times = {"one": {"forward": [], "backward": []}, "many": {"forward": [], "backward": []}}
    loads = []
    for _ in range(options.runs):
        for name, command, threads in [("many", many, 1), ("one", one, options.ranks)]:
            loads.append(os.getloadavg()[0])
            report = bench(command, threads)
            for pass_name, values in times[name].items():
                values.append(report[f"{pass_name}_ms"])
    print(f"{shape} {options.dtype}, causal, load before each run {', '.join(f'{load:.2f}' for load in loads)}")
    for pass_name in ["forward", "backward"]:
        many_ms, one_ms = (statistics.median(times[name][pass_name]) for name in ["many", "one"])
        print(f"{pass_name}: {options.ranks} ranks of 1 thread {many_ms:.1f} ms, 1 rank of {options.ranks} threads "
              f"{one_ms:.1f} ms: {one_ms / many_ms:.3f} of its speed")


if __name__ == "__main__":
    main()
