"""Attention across ranks: each holds some rows of the queries and some of the keys.

    communicator = mpi_communicator()
    kernel = compile("score", mask_mod="q_idx >= kv_idx", dtype="f32", head_dim=64)
    shards = Shards.zigzag(65536, communicator.ranks)
    plan = kernel.plan(communicator, shards, heads=8)
    out, lse = plan.forward(q, k, v)  # of this rank's rows

Calls that have a communicator or a plan are made by all ranks together. docs/distributed.md says more.
"""
from __future__ import annotations

import operator
import os
import sys
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _core, arrays, errors, layouts
from ._core import Communicator
from .kernel import Gradients, Signature, choice, gradients_like, log, ordered, parse_device, prepared_options

__all__ = ["Communicator", "DistributedKernel", "DistributedPlan", "LaunchedRank", "Shards", "Traffic", "compile",
           "in_process_communicators", "mpi_communicator", "nccl_communicator", "nccl_id", "torchrun_rank"]

_EXCHANGES = {"automatic": 0, "ring": 1, "all_gather": 2, "ulysses": 3}
_REDUCTIONS = {"sum": 0, "average": 1, "none": 2}
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "query_starts")


class Shards:
    """Which rows of a sequence each rank holds. A rank's tensors have those of its ranges, one after another."""

    __slots__ = ("length", "_ranges")

    def __init__(self, length: int, ranges: Tuple[Tuple[Tuple[int, int], ...], ...]):
        """The class methods make them."""
        self.length, self._ranges = length, ranges

    @classmethod
    def contiguous(cls, length: int, ranks: int) -> Shards:
        """Pieces as even as can be, in order."""
        return cls(length, _core.shards("contiguous", length, ranks, 0))

    @classmethod
    def zigzag(cls, length: int, ranks: int) -> Shards:
        """Of 2 * ranks pieces, one from the front and one from the back: even work under a causal mask."""
        return cls(length, _core.shards("zigzag", length, ranks, 0))

    @classmethod
    def striped(cls, length: int, ranks: int, rows: int) -> Shards:
        """Stripes of so many rows, dealt in turn."""
        return cls(length, _core.shards("striped", length, ranks, rows))

    @classmethod
    def of(cls, length: int, ranges: Sequence[Iterable[Tuple[int, int]]]) -> Shards:
        """A list of ranges (begin, end) for each rank, which together hold every row once."""
        return cls(length, _core.shards_of(length, [list(own) for own in ranges]))

    @property
    def ranks(self) -> int:
        return len(self._ranges)

    def ranges(self, rank: int) -> Tuple[Tuple[int, int], ...]:
        """Of a rank: (begin, end) of each, the end not included."""
        return self._ranges[rank]

    def rows(self, rank: int) -> int:
        """Of a rank's tensors."""
        return sum(end - begin for begin, end in self._ranges[rank])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shards) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        return f"<flexc.distributed.Shards of {self.length} rows on {self.ranks} ranks>"

    def _value(self) -> Tuple[int, Tuple[Tuple[Tuple[int, int], ...], ...]]:
        return self.length, self._ranges


class LaunchedRank(NamedTuple):
    """What torchrun tells a process."""

    rank: int
    ranks: int
    local_rank: int


def torchrun_rank() -> LaunchedRank:
    """By RANK, WORLD_SIZE and LOCAL_RANK."""
    return LaunchedRank(*_core.torchrun_rank())


def _handle_of(comm: Any) -> Optional[int]:
    if comm is None or isinstance(comm, int):
        return comm
    if not type(comm).__module__.startswith("mpi4py"):
        raise errors.InvalidOption("comm is a communicator of mpi4py, or an MPI_Comm as a number, not "
                                   f"{type(comm).__name__}")
    if not comm:
        raise errors.InvalidOption("comm is MPI.COMM_NULL, which has no ranks")
    return comm.handle if hasattr(comm, "handle") else sys.modules["mpi4py.MPI"]._handleof(comm)


def mpi_communicator(comm: Any = None, *, timeout_seconds: float = 600.0) -> Communicator:
    """By MPI, for ranks on CPUs, which all call this together.

    comm: a communicator of mpi4py or an MPI_Comm as a number, which is duplicated; if not given, all processes are
        ranks, and MPI is initialised if nobody has
    """
    return _core.mpi_communicator(_handle_of(comm), timeout_seconds)


def in_process_communicators(ranks: int, *, timeout_seconds: float = 600.0) -> List[Communicator]:
    """Of ranks of one process, each to be used in a thread of its own."""
    return _core.in_process_communicators(ranks, timeout_seconds)


def nccl_id() -> bytes:
    """For one rank, which gives it to all others by a channel of the program's."""
    return _core.nccl_id()


def nccl_communicator(of: Union[bytes, str, os.PathLike[str], int], rank: Optional[int] = None,
                      ranks: Optional[int] = None, device: Any = None, *,
                      timeout_seconds: float = 600.0) -> Communicator:
    """By NCCL, for ranks with a GPU each: all of them call this together.

    of: what nccl_id() gave to one rank; a path, where no file is yet and all ranks see what rank 0 writes; or the
        address of the program's own ncclComm_t, of which another is split, and which knows its rank and its device
    device: 'cuda', 'cuda:1', a torch.device, ...
    """
    if isinstance(of, int):
        if (rank, ranks, device) != (None, None, None):
            raise errors.InvalidOption("rank, ranks and device are those of the ncclComm_t")
        return _core.nccl_communicator_of(of, timeout_seconds)
    if rank is None or ranks is None or device is None:
        raise errors.InvalidOption("nccl_communicator() takes a rank, the number of ranks, and a device")
    kind, index = parse_device(device)
    if kind != 2:
        raise errors.InvalidOption(f"ranks by NCCL compute on GPUs, not on {device!r}")
    return _core.nccl_communicator(of if isinstance(of, bytes) else os.fspath(of), rank, ranks, index, timeout_seconds)


def compile(text: str, *, sharded: Optional[Mapping[str, str]] = None, **options: Any) -> DistributedKernel:
    """Compiles a program for ranks. Options are those of flexc.compile; without a device, the CPU.

    sharded: {'bias': 'Q_LEN'}: buffers of which each rank has the rows of its queries, or of its keys: 'KV_LEN'
    """
    prepared = prepared_options(options)
    signature = Signature(_core.check(text, prepared))
    core, messages = _core.compile_distributed(text, prepared, tuple((sharded or {}).items()))
    log(messages)
    return DistributedKernel(text, options, prepared, signature, core)


class Traffic(NamedTuple):
    """Of one rank and one pass, as the plan knows it beforehand: bytes, launches, and elements of the score matrix."""

    forward_sent: int
    forward_received: int
    backward_sent: int
    backward_received: int
    pieces: int
    visible_area: float
    fair_area: float


class DistributedKernel:
    """A program that is compiled for ranks."""

    def __init__(self, text: str, options: Dict[str, Any], prepared: Dict[str, Any], signature: Signature,
                 core: _core.DistributedKernel):
        self.text, self.signature = text, signature
        self.dtype: str = prepared["dtype"]
        self.head_dim: int = prepared["head_dim"]
        self.head_dim_v: int = prepared["head_dim_v"] or prepared["head_dim"]
        self.query_layout, self.key_layout = (options.get(name, "dense") for name in ("query_layout", "key_layout"))
        self._gradient_type = options.get("gradient_type", "f32")
        self._core = core
        self._buffers = tuple(name for name, *_ in signature.buffers)
        self._grads = tuple(name for name, _, _, grad in signature.buffers if grad)

    def __repr__(self) -> str:
        return f"<flexc.distributed.DistributedKernel {self.dtype}, head dim {self.head_dim}: {self.signature!r}>"

    def _options(self, lengths: Dict[str, Any], query_start: str,
                 options: Dict[str, Any]) -> Tuple[Dict[str, Any], Optional[Dict[str, Any]]]:
        """What the module takes: run-time values, and the lengths of ragged layouts."""
        if self.query_layout == "dense":
            unused = [name for name, array in lengths.items() if array is not None]
            if unused:
                raise errors.InvalidOption(f"{unused[0]}: the kernel was compiled for dense tensors, which have no "
                                           "lengths: compile it with a query_layout and a key_layout")
            return options, None
        return {**options, "query_start": choice(layouts.QUERY_STARTS, query_start, "query_start")}, lengths

    def _batch(self, batch: Optional[int]) -> int:
        if batch is not None:
            return batch
        return 1 if self.query_layout == "dense" else -1

    def balanced_shards(self, length: int, ranks: int, buffers: Optional[Mapping[str, Any]] = None, *, heads: int,
                        kv_heads: Optional[int] = None, batch: Optional[int] = None,
                        params: Optional[Mapping[str, float]] = None, stream: Optional[int] = None,
                        cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_q: Any = None,
                        seqused_k: Any = None, query_starts: Any = None, query_start: str = "auto") -> Shards:
        """Shards of queries and keys of one length that are even in rows and in what the mask shows.

        Without communication: the same on every rank. The length of ragged layouts is that of the packed tensors.
        """
        lengths = dict(zip(_LENGTHS, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, query_starts)))
        sizes = self._batch(batch), heads, heads if kv_heads is None else kv_heads, length
        return Shards(length, self._core.balanced_shards(sizes, ranks, self._buffers, ordered(self._buffers, buffers),
                                                         stream, *self._options(lengths, query_start,
                                                                                {"params": params})))

    def plan(self, communicator: Communicator, queries: Shards, keys: Optional[Shards] = None,
             buffers: Optional[Mapping[str, Any]] = None, *, heads: int, kv_heads: Optional[int] = None,
             batch: Optional[int] = None, params: Optional[Mapping[str, float]] = None, scale: Optional[float] = None,
             exchange: str = "automatic", reduction: str = "sum", gathered_bytes: Optional[int] = None,
             ranks_per_node: int = 0, cpu_threads: int = 0, stream: Optional[int] = None, cu_seqlens_q: Any = None,
             cu_seqlens_k: Any = None, seqused_q: Any = None, seqused_k: Any = None, query_starts: Any = None,
             query_start: str = "auto") -> DistributedPlan:
        """A plan for calls of all ranks with these sizes, which finds from the mask what each rank needs of others.

        queries, keys: who holds what, of ragged layouts as rows of the packed tensors; keys are as queries if not given
        buffers: whole on every rank, but those that are sharded; what the mask reads is the same everywhere
        batch: of dense tensors, 1 if not given
        exchange: 'automatic', 'ring', 'all_gather' or 'ulysses'
        reduction: of gradients of whole buffers: 'sum', 'average' or 'none'
        gathered_bytes: of other ranks' keys and values by all_gather at a time, 256 MiB if not given
        ranks_per_node: of ulysses, heads are swapped inside nodes of so many ranks, and keys go across by ring
        cu_seqlens_q, ..., query_start: of ragged layouts, as of Kernel.plan: of all requests, in host memory
        """
        def given() -> Tuple[Any, ...]:
            keys_or_same = queries if keys is None else keys
            sizes = tuple(map(operator.index, (self._batch(batch), heads, heads if kv_heads is None else kv_heads)))
            options = {"params": params, "scale": scale, "exchange": choice(_EXCHANGES, exchange, "exchange"),
                       "reduction": choice(_REDUCTIONS, reduction, "reduction"), "gathered_bytes": gathered_bytes,
                       "ranks_per_node": ranks_per_node, "cpu_threads": cpu_threads}
            lengths = dict(zip(_LENGTHS, (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, query_starts)))
            return (sizes, queries._value(), keys_or_same._value(), communicator, self._buffers, self._grads,
                    ordered(self._buffers, buffers), stream, *self._options(lengths, query_start, options))
        return DistributedPlan(self, communicator, self._core.plan(*_prepared(communicator, given)))


def _prepared(communicator: Communicator, given: Any) -> Tuple[Any, ...]:
    """What this rank gives to a call. Where it cannot, the other ranks, which wait for it, get the error too."""
    try:
        return given()
    except Exception as error:
        communicator.refuse(str(error))
        raise


class DistributedPlan:
    """What a kernel does for one set of sizes on the ranks of a communicator. One thread at a time uses it."""

    def __init__(self, kernel: DistributedKernel, communicator: Communicator, core: _core.DistributedPlan):
        self.kernel, self.communicator = kernel, communicator
        self._core = core

    def __repr__(self) -> str:
        return (f"<flexc.distributed.DistributedPlan of {self.kernel!r}: rank {self.communicator.rank} of "
                f"{self.communicator.ranks} by {self.exchange}>")

    @property
    def exchange(self) -> str:
        """Never 'automatic'."""
        return self._core.traffic[0]

    @property
    def traffic(self) -> Traffic:
        return Traffic(*self._core.traffic[1])

    def explain(self) -> str:
        """The exchange, why it was chosen, and what each step does."""
        return self._core.explain()

    def forward(self, q: Any, k: Any, v: Any, buffers: Optional[Mapping[str, Any]] = None, *, out: Any = None,
                lse: Any = None, stream: Optional[int] = None) -> Tuple[Any, Any]:
        """(out, lse) of this rank's rows. On a GPU it returns when messages are done, before the last launches are."""
        kernel, see = self.kernel, arrays.visible

        def given() -> Tuple[Any, ...]:
            rows = tuple(q.shape[:-1])
            results = (arrays.empty(q, (*rows, v.shape[-1]), kernel.dtype) if out is None else out,
                       arrays.empty(q, rows, "f32") if lse is None else lse)
            return (see(q), see(k), see(v), *results), ordered(kernel._buffers, buffers), stream
        tensors, *rest = _prepared(self.communicator, given)
        self._core.forward(tensors, *rest)
        return tensors[3], tensors[4]

    def backward(self, q: Any, k: Any, v: Any, out: Any, lse: Any, d_out: Any,
                 buffers: Optional[Mapping[str, Any]] = None, *, d_lse: Any = None, dq: Any = None, dk: Any = None,
                 dv: Any = None, gradients: Optional[Mapping[str, Any]] = None,
                 stream: Optional[int] = None) -> Gradients:
        """Gradients(q, k, v, buffers): of this rank's rows, and of the `grad` buffers by name."""
        kernel, see = self.kernel, arrays.visible

        def given() -> Tuple[Any, ...]:
            of_rows = tuple(arrays.empty(like, tuple(like.shape), kernel.dtype) if result is None else result
                            for like, result in ((q, dq), (k, dk), (v, dv)))
            of_buffers = gradients_like(kernel._grads, buffers, gradients, kernel._gradient_type)
            tensors = (*map(see, (q, k, v, out, lse, d_out)), None if d_lse is None else see(d_lse), *of_rows)
            return tensors, ordered(kernel._buffers, buffers), of_buffers
        tensors, own, of_buffers = _prepared(self.communicator, given)
        self._core.backward(tensors, own, tuple(of_buffers[name] for name in kernel._grads), stream)
        return Gradients(tensors[7], tensors[8], tensors[9], of_buffers)
