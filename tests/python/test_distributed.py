"""flexc.distributed: ranks in threads, and in processes under mpirun, against one rank; errors on all of them."""
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import flexc
import ranked
from conftest import ROOT, close
from flexc import distributed
from flexc.distributed import Shards

MPIRUN = shutil.which("mpirun.openmpi") or shutil.which("mpirun")


def on_ranks(count, work, timeout_seconds=60):
    """What work(communicator) gives, or raises, on each rank, in threads."""
    communicators = distributed.in_process_communicators(count, timeout_seconds=timeout_seconds)
    results = [None] * count

    def run(rank):
        try:
            results[rank] = work(communicators[rank])
        except Exception as problem:
            results[rank] = problem
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def mpirun(ranks, *arguments):
    """Of Python, with these arguments."""
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300,
                          env={**os.environ, "FLEXC_THREADS": "1", "OMPI_MCA_mpi_yield_when_idle": "1"})


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("problem", ranked.PROBLEMS)
def test_threads(problem, ranks):
    for result in on_ranks(ranks, ranked.PROBLEMS[problem].check):
        if result is not None:
            raise result


def test_other_arrays():
    torch = pytest.importorskip("torch")

    def work(communicator):
        kernel = distributed.compile("score", dtype="bf16", head_dim=8)
        plan = kernel.plan(communicator, Shards.contiguous(8, 2), heads=1)
        x = torch.ones(1, 1, 4, 8, dtype=torch.bfloat16, requires_grad=True)
        out, lse = plan.forward(x, x, x)
        gradients = plan.backward(x, x, x, out, lse, torch.ones_like(x))
        return out, lse, gradients.v
    for out, lse, dv in on_ranks(2, work):
        assert out.dtype == dv.dtype == torch.bfloat16 and lse.dtype == torch.float32
        assert torch.equal(out, torch.ones_like(out)) and torch.equal(dv, torch.ones_like(dv))


@pytest.mark.parametrize("exchange", ["ring", "all_gather", "ulysses"])
@pytest.mark.parametrize("with_lse", [False, True])
def test_autograd(exchange, with_lse):
    """Gradients of a loss over all ranks are those that autograd gives of the same loss of plain attention."""
    torch = pytest.importorskip("torch")
    from flexc.torch import attention_on_ranks
    shards = Shards.zigzag(37, 2)
    random = torch.Generator().manual_seed(3)
    q, k, v, weights = (torch.randn(1, 4, 37, 8, generator=random) for _ in range(4))
    slopes, shift = torch.randn(4, generator=random), torch.randn(37, generator=random)
    program = ("buffer slopes: f32[H] grad\nbuffer shift: f32[KV_LEN]\n"
               "score_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1 + shift[kv_idx]\nmask_mod = q_idx >= kv_idx")

    def loss_of(out, lse, weights):
        return (out * 2 * weights).square().sum() + (lse.sin().sum() if with_lse else 0)

    def work(communicator):
        plan = distributed.compile(program, dtype="f32", head_dim=8).plan(
            communicator, shards, buffers={"slopes": slopes.detach(), "shift": shift}, heads=4, exchange=exchange)
        rows = torch.cat([torch.arange(*own) for own in shards.ranges(communicator.rank)])
        learnt = slopes.detach().clone().requires_grad_()
        inputs = [tensor.detach()[:, :, rows].requires_grad_() for tensor in (q, k, v)]
        own = weights[:, :, rows]
        # What autograd does between: inputs and results of operators, and a gradient with other strides.
        out, lse = attention_on_ranks(plan, *(tensor * 1 for tensor in inputs), {"slopes": learnt * 1, "shift": shift},
                                      return_lse=True)
        loss_of(out.transpose(1, 2), lse, own.transpose(1, 2)).backward()
        with torch.no_grad():
            assert torch.equal(attention_on_ranks(plan, *inputs, {"slopes": learnt, "shift": shift}), out)
        return rows, out.detach(), *(tensor.grad for tensor in inputs), learnt.grad

    for tensor in (q, k, v, slopes):
        tensor.requires_grad_()
    position = torch.arange(37)
    score = q @ k.mT / 8 ** 0.5 + slopes[:, None, None] * (position - position[:, None]) * 0.1 + shift
    score = score.masked_fill(position > position[:, None], -torch.inf)
    wanted = score.softmax(-1) @ v
    loss_of(wanted, score.logsumexp(-1), weights).backward()
    for result in on_ranks(2, work):
        if isinstance(result, Exception):
            raise result
        rows, out, *gradients, of_slopes = result
        close(out, wanted.detach()[:, :, rows])
        for got, whole in zip(gradients, (q, k, v)):
            close(got, whole.grad[:, :, rows])
        close(of_slopes, slopes.grad)


@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_processes(ranks):
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        has_mpi4py = "no"
    else:
        has_mpi4py = "yes"
    done = mpirun(ranks, ranked.__file__)
    assert done.returncode == 0, done.stderr
    assert f"{ranks} ranks agree, mpi4py: {has_mpi4py}" in done.stdout


@pytest.mark.skipif(MPIRUN is None, reason="there is no mpirun")
def test_the_guides_program():
    text = (ROOT / "docs" / "distributed.md").read_text()
    program = text.split("```python\n")[1].split("```")[0]
    done = mpirun(3, "-c", program)
    assert done.returncode == 0, done.stderr
    assert "d_slopes: [" in done.stdout and "exchange: " in done.stdout


def test_shards():
    assert Shards.contiguous(7, 3).ranges(1) == ((3, 5),)
    assert Shards.zigzag(8, 2).ranges(0) == ((0, 2), (6, 8))
    striped = Shards.striped(10, 2, 4)
    assert (striped.length, striped.ranks, striped.rows(0), striped.ranges(0)) == (10, 2, 6, ((0, 4), (8, 10)))
    assert striped == Shards.of(10, [[(0, 4), [8, 10]], iter([(4, 8)])]) != Shards.contiguous(10, 2)
    assert len({striped, Shards.striped(10, 2, 4)}) == 1
    for wrong in [lambda: Shards.zigzag(8, 0), lambda: Shards.of(4, [[(0, 2)], [(1, 4)]]),
                  lambda: Shards.of(4, [[(0, 2)], []])]:
        with pytest.raises(flexc.errors.InvalidOption):
            wrong()
    with pytest.raises(TypeError, match="a range is"):
        Shards.of(4, [[(0, 2, 4)]])


def test_balanced_shards():
    kernel = distributed.compile("score", mask_mod="q_idx >= kv_idx", dtype="f32", head_dim=8)
    shards = kernel.balanced_shards(512, 2, heads=1)
    assert (shards.length, shards.rows(0)) == (512, 256)
    work = [sum(position for begin, end in shards.ranges(rank) for position in range(begin, end)) for rank in (0, 1)]
    assert abs(work[0] - work[1]) < 0.1 * work[0]


@pytest.fixture(scope="module")
def kernel():
    return distributed.compile(ranked.SLOPES, dtype="f32", head_dim=8)


def call(kernel, communicator, change=None):
    """A forward of 4 rows for each rank; change(communicator, what plan and forward are given) may spoil it."""
    rows = np.zeros((1, 2, 4, 8), np.float32)
    buffers = {"slopes": np.zeros(2, np.float32)}
    plan = {"communicator": communicator, "queries": Shards.contiguous(8, 2), "buffers": buffers, "heads": 2}
    forward = {"q": rows, "k": rows, "v": rows, "buffers": buffers}
    if change is not None and communicator.rank == 1:
        change(plan, forward)
    made = kernel.plan(**plan)
    return made.forward(**forward)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


MISTAKES = {
    "no such buffer": (lambda plan, _: plan.update(buffers={"slope": 1}), flexc.errors.InvalidOption,
                       "no buffer slope"),
    "heads": (lambda plan, _: plan.update(heads=2.5), TypeError, "float"),
    "no such exchange": (lambda plan, _: plan.update(exchange="star"), flexc.errors.InvalidOption,
                         "exchange is one of"),
    "other heads": (lambda plan, _: plan.update(heads=4), flexc.errors.InvalidOption, r"expected shape \[H = 4\]"),
    "other shards": (lambda plan, _: plan.update(queries=Shards.zigzag(8, 2)), flexc.errors.InvalidOption, "rank 1"),
    "params": (lambda plan, _: plan.update(params={"cap": "x"}), TypeError, "real number"),
    "lengths": (lambda plan, _: plan.update(cu_seqlens_q=[0, 8]), flexc.errors.InvalidOption, "dense tensors"),
    "no array": (lambda _, forward: forward.update(q=[1.0]), AttributeError, "shape"),
    "no buffer": (lambda _, forward: forward.update(buffers={}), flexc.errors.InvalidOption, "slopes"),
    "read-only": (lambda _, forward: forward.update(lse=read_only(np.zeros((1, 2, 4), np.float32))), ValueError,
                  "lse: is read-only"),
    "rows": (lambda _, forward: forward.update(k=np.zeros((1, 2, 5, 8), np.float32)), flexc.errors.InvalidOption,
             r"k: expected shape \[1, 2, 4, 8\]"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_of_one_rank_is_an_error_of_all(kernel, mistake):
    change, kind, text = MISTAKES[mistake]
    first, second = on_ranks(2, lambda communicator: call(kernel, communicator, change))
    with pytest.raises(kind, match=text):
        raise second
    # What is wrong on rank 1, in its words; nobody waits for it.
    with pytest.raises(flexc.errors.InvalidOption, match=f"rank 1.*{'' if text == 'rank 1' else text}"):
        raise first


def test_a_rank_that_does_not_come(kernel):
    results = on_ranks(2, lambda communicator: communicator.rank == 1 or call(kernel, communicator), 0.2)
    assert isinstance(results[0], flexc.Error) and results[0].code == "io"
    assert "rank 1" in str(results[0])


def test_one_thread_at_a_time(kernel):
    communicators = distributed.in_process_communicators(2, timeout_seconds=60)
    results = []

    def attempt():
        try:
            results.append(call(kernel, communicators[0]))
        except flexc.errors.InvalidOption as error:
            results.append(str(error))
    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not results:  # one waits for rank 1, and the other cannot
        time.sleep(0.001)
    call(kernel, communicators[1])
    for thread in threads:
        thread.join()
    assert "another thread is in a call of this communicator" in results[0]
    assert isinstance(results[1], tuple)


def test_what_is_no_communicator(kernel, monkeypatch, tmp_path):
    for wrong in ["comm", 1.5, object()]:
        with pytest.raises(flexc.errors.InvalidOption, match="communicator of mpi4py"):
            distributed.mpi_communicator(wrong)
    with pytest.raises(TypeError):
        distributed.Communicator()
    with pytest.raises(flexc.errors.InvalidOption, match="ranks"):
        distributed.in_process_communicators(0)
    with pytest.raises(flexc.errors.InvalidOption, match="a rank, the number of ranks, and a device"):
        distributed.nccl_communicator(bytes(128))
    with pytest.raises(flexc.errors.InvalidOption, match="on GPUs, not on 'cpu'"):
        distributed.nccl_communicator(bytes(128), 0, 1, "cpu")
    with pytest.raises(flexc.errors.InvalidOption, match="128 bytes, not 3"):
        distributed.nccl_communicator(b"abc", 0, 1, "cuda")
    with pytest.raises(flexc.errors.InvalidOption, match="those of the ncclComm_t"):
        distributed.nccl_communicator(1, rank=0)
    monkeypatch.setenv("FLEXC_NCCL", str(tmp_path / "no-nccl.so"))
    for call in [distributed.nccl_id, lambda: distributed.nccl_communicator(bytes(128), 0, 1, "cuda:0"),
                 lambda: distributed.nccl_communicator(tmp_path / "id", 0, 1, "cuda:0"),
                 lambda: distributed.nccl_communicator(1)]:
        with pytest.raises(flexc.errors.LibraryMissing, match="no-nccl.so"):
            call()
    assert not (tmp_path / "id").exists()


def test_torchrun_rank(monkeypatch):
    for name, value in [("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")]:
        monkeypatch.setenv(name, value)
    launched = distributed.torchrun_rank()
    assert launched == (5, 8, 1) and launched.local_rank == 1
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(flexc.errors.InvalidOption, match="LOCAL_RANK is not set"):
        distributed.torchrun_rank()


def test_what_ranks_do_not_have():
    with pytest.raises(flexc.errors.Unsupported, match="both dense or both ragged"):
        distributed.compile("score", dtype="f32", head_dim=8, query_layout="ragged", key_layout="paged", backward=False)
    with pytest.raises(flexc.errors.InvalidOption, match="sharded, and the mask reads it"):
        distributed.compile("score", mask_mod="seen[kv_idx]", buffers={"seen": "bool[KV_LEN]"}, dtype="f32",
                            head_dim=8, sharded={"seen": "KV_LEN"})
