"""Layouts on a GPU from Python, without an array library of GPUs.

Arrays of NumPy are copied by the driver, and their DLPack capsules are made to say so.
"""
import ctypes

import numpy as np
import pytest

import flexc
from test_layouts import ALIBI, CAUSAL, HEADS, SLOPES, Batch

try:
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    present = cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    present = present and cuda.cuCtxSetCurrent(context) == 0
except OSError:
    present = False
pytestmark = pytest.mark.skipif(not present, reason="there is no GPU")
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class OnGpu:
    def __init__(self, array):
        self.array = np.ascontiguousarray(array)
        self.shape, self.dtype, self.data = self.array.shape, self.array.dtype, ctypes.c_uint64()
        assert cuda.cuMemAlloc_v2(ctypes.byref(self.data), ctypes.c_size_t(max(self.array.nbytes, 1))) == 0
        self.write(self.array)

    def write(self, array):
        array = np.ascontiguousarray(array, self.dtype)
        copied = cuda.cuMemcpyHtoD_v2(self.data, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
        assert copied == 0

    def read(self):
        flexc._core.synchronize(2, 0)
        host = np.empty_like(self.array)
        assert cuda.cuMemcpyDtoH_v2(host.ctypes.data_as(ctypes.c_void_p), self.data, ctypes.c_size_t(host.nbytes)) == 0
        return host

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **given):
        capsule = self.array.__dlpack__()
        at = get_pointer(capsule, b"dltensor")
        ctypes.c_uint64.from_address(at).value = self.data.value
        ctypes.c_int32.from_address(at + 8).value = 2
        return capsule


PAGES_OF = [[3, 9, 1, 12], [5, 9], [0, 2, 4, 6, 8]]


MOST_ROWS = 24  # of queries: what tensors have beside lengths on the device, which say how many are used


def run(plan, batch):
    used = len(batch.q)
    q = np.full((MOST_ROWS, *batch.q.shape[1:]), np.nan, np.float32)
    q[:used] = batch.q
    out, lse = OnGpu(np.zeros_like(q)), OnGpu(np.zeros(q.shape[:2], np.float32))
    plan.forward(*map(OnGpu, (q, batch.k, batch.v)), {"slopes": OnGpu(SLOPES)}, out=out, lse=lse)
    batch.check(out.read()[:used], lse.read()[:used], ALIBI, CAUSAL, {"slopes": SLOPES}, tolerance=1e-3)


@pytest.mark.parametrize("on_device", [False, True])
def test_steps(on_device):
    kernel = flexc.compile(ALIBI, mask_mod=CAUSAL, buffers={"slopes": "f32[H]"}, dtype="f32", head_dim=8, device="cuda",
                           query_layout="ragged", key_layout="paged", backward=False)
    place = (lambda x: OnGpu(np.asarray(x, np.int32))) if on_device else (lambda x: x)
    table = [pages + [0] * (5 - len(pages)) for pages in PAGES_OF]
    plan = None
    for q_lens, kv_lens in [([5, 1, 2], [5, 6, 17]), ([1, 1, 1], [6, 7, 18]), ([0, 8, 1], [0, 8, 20])]:
        batch = Batch(q_lens, kv_lens, PAGES_OF)
        lengths = {"cu_seqlens_q": place(batch.cu_seqlens_q), "seqused_k": place(kv_lens), "page_table": place(table)}
        if plan is None:
            if on_device:
                with pytest.raises(flexc.errors.InvalidOption, match="q_len: missing"):
                    kernel.plan(*map(OnGpu, (batch.q, batch.k, batch.v)), **lengths)
            q = np.zeros((MOST_ROWS, HEADS, 8), np.float32)
            plan = kernel.plan(*map(OnGpu, (q, batch.k, batch.v)), q_len=8, kv_len=20, **lengths)
        else:
            plan.update(**lengths)
        run(plan, batch)


def test_wide_integers():
    kernel = flexc.compile("score", dtype="f32", head_dim=8, device="cuda", query_layout="ragged", key_layout="ragged")
    batch = Batch([3, 2], [4, 5])
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_q: expected i32, got i64"):
        kernel.plan(*map(OnGpu, (batch.q, batch.k, batch.v)), q_len=8, kv_len=8,
                    cu_seqlens_q=OnGpu(np.array([0, 3, 5])), cu_seqlens_k=OnGpu(np.array([0, 4, 9])))
