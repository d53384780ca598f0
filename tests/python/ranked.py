"""Problems of attention across ranks: one rank's calls beside those of a kernel that has the whole.

As a program, under mpirun, it checks all of them on each rank, by MPI's own communicator and by ones of mpi4py.
"""
import os
import sys
import traceback

import numpy as np

import flexc
from conftest import close
from flexc import distributed
from flexc.distributed import Shards

SLOPES = "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1\n"


class Problem:
    def __init__(self, program, exchange, queries, keys=None, shards=Shards.zigzag, buffers=None, sharded=None,
                 params=None, requests=None, with_d_lse=False):
        self.program, self.exchange, self.shards = program, exchange, shards
        self.queries, self.keys = queries, queries if keys is None else keys
        self.shapes, self.sharded, self.params = buffers or {}, sharded or {}, params
        self.requests, self.with_d_lse = requests, with_d_lse

    HEADS, KV_HEADS, DIM = 4, 2, 16

    def tensors(self):
        """The whole, the same on every rank."""
        random = np.random.default_rng(self.queries)

        def rows(length, heads, *columns):
            shape = (length, heads, *columns) if self.requests else (1, heads, length, *columns)
            return random.standard_normal(shape).astype(np.float32)
        q, d_out = (rows(self.queries, self.HEADS, self.DIM) for _ in range(2))
        k, v = (rows(self.keys, self.KV_HEADS, self.DIM) for _ in range(2))
        d_lse = rows(self.queries, self.HEADS) if self.with_d_lse else None
        buffers = {name: random.standard_normal(shape).astype(np.float32) for name, shape in self.shapes.items()}
        return q, k, v, d_out, d_lse, buffers

    def options(self):
        layouts = {"query_layout": "ragged", "key_layout": "ragged"} if self.requests else {}
        return {"dtype": "f32", "head_dim": self.DIM, "device": "cpu", **layouts}

    def check(self, communicator):
        """This rank's results against its rows of the whole."""
        q, k, v, d_out, d_lse, buffers = self.tensors()
        lengths = self.requests or {}
        alone = flexc.compile(self.program, **self.options()).plan(q, k, v, buffers, self.params, **lengths)
        out, lse = alone.forward(q, k, v, buffers)
        wanted = alone.backward(q, k, v, out, lse, d_out, buffers, d_lse=d_lse)

        kernel = distributed.compile(self.program, sharded=self.sharded, **self.options())
        sizes = {"heads": self.HEADS, "kv_heads": self.KV_HEADS}
        if self.shards == "balanced":
            queries = keys = kernel.balanced_shards(self.queries, communicator.ranks, **sizes, **lengths)
        else:
            queries, keys = (self.shards(length, communicator.ranks) for length in (self.queries, self.keys))

        def own(array, shards, axis=0 if self.requests else 2):
            if array is None:
                return None
            ranges = [np.arange(begin, end) for begin, end in shards.ranges(communicator.rank)]
            return np.ascontiguousarray(array.take(np.concatenate([*ranges, []]).astype(int), axis))

        def own_buffer(name, array):
            dim = self.sharded.get(name)
            axis = None if dim is None else [i for i, extent in enumerate(array.shape) if extent ==
                                             (self.queries if dim == "Q_LEN" else self.keys)][0]
            return array if dim is None else own(array, queries if dim == "Q_LEN" else keys, axis)
        mine = {name: own_buffer(name, array) for name, array in buffers.items()}
        plan = kernel.plan(communicator, queries, keys, mine, params=self.params, exchange=self.exchange, **sizes,
                           **lengths)
        assert plan.exchange == self.exchange
        inputs = own(q, queries), own(k, keys), own(v, keys)
        for _ in range(2):
            got = plan.forward(*inputs, mine)
            close(got[0], own(out, queries))
            close(got[1], own(lse, queries))
            gradients = plan.backward(*inputs, *got, own(d_out, queries), mine, d_lse=own(d_lse, queries))
        for actual, whole, shards in zip(gradients, wanted, (queries, keys, keys)):
            close(actual, own(whole, shards))
        assert gradients.buffers.keys() == wanted.buffers.keys()
        for name, gradient in wanted.buffers.items():
            close(gradients.buffers[name], own_buffer(name, gradient))
        assert plan.traffic.pieces > 0 or not queries.rows(communicator.rank)
        assert (plan.traffic.forward_received > 0) <= (communicator.ranks > 1)


PROBLEMS = {
    "ring": Problem(SLOPES + "mask_mod = q_idx + 20 >= kv_idx", "ring", 37, 53, buffers={"slopes": (4,)},
                    with_d_lse=True),
    "gather, buffers of rows": Problem(
        "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]", "all_gather", 29, 31,
        shards=lambda length, ranks: Shards.striped(length, ranks, 4), buffers={"bias": (4, 29, 31)},
        sharded={"bias": "KV_LEN"}),
    "ulysses, sink": Problem("buffer drain: f32[H] grad\nparam cap: f32\nscore_mod = cap * tanh(score / cap)\n"
                             "mask_mod = q_idx >= kv_idx\nsink = drain[h]", "ulysses", 33, shards=Shards.contiguous,
                             buffers={"drain": (4,)}, params={"cap": 3.0}),
    "ranks without rows": Problem(SLOPES, "ring", 2, 5, shards=Shards.contiguous, buffers={"slopes": (4,)}),
    "requests": Problem(SLOPES + "mask_mod = q_idx >= kv_idx", "all_gather", 62, shards="balanced",
                        buffers={"slopes": (4,)}, with_d_lse=True,
                        requests={"cu_seqlens_q": [0, 20, 20, 61, 62], "cu_seqlens_k": [0, 20, 20, 61, 62]}),
    "requests that end with the keys": Problem(
        SLOPES + "mask_mod = q_idx >= kv_idx", "ring", 24, 68, buffers={"slopes": (4,)},
        requests={"cu_seqlens_q": np.array([0, 9, 10, 10, 24]), "cu_seqlens_k": np.array([0, 20, 51, 54, 68]),
                  "seqused_k": [20, 25, 3, 14], "query_start": "end"}),
}


def main():
    timeout = {"timeout_seconds": 60}
    communicators = [distributed.mpi_communicator(**timeout)]
    try:
        from mpi4py import MPI
    except ImportError:
        MPI = None
    else:
        half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
        # The others of a half have numbers of their own, and a communicator that is lent may be freed.
        communicators += [distributed.mpi_communicator(half, **timeout),
                          distributed.mpi_communicator(MPI._handleof(MPI.COMM_WORLD), **timeout)]
        assert communicators[1].rank == MPI.COMM_WORLD.rank // 2
        half.Free()
        try:
            distributed.mpi_communicator(half, **timeout)
        except flexc.errors.InvalidOption as error:
            assert "MPI.COMM_NULL" in str(error)
        else:
            raise AssertionError("MPI.COMM_NULL was taken")
    for communicator in communicators:
        for problem in PROBLEMS.values():
            problem.check(communicator)
    if communicators[0].rank == 0:
        print(f"{communicators[0].ranks} ranks agree, mpi4py: {'no' if MPI is None else 'yes'}")


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # the other ranks wait, and mpirun ends them
