"""Attention of requests by FlashInfer, cuDNN and PyTorch, as far as this Python has them, which layouts.py times.

A peer is a function of a row and its tensors that gives what plans, or None, and what runs. Times are as flexc's:
medians with the L2 flushed before each run.
"""
import importlib.util
import signal
import statistics
import time

if importlib.util.find_spec("torch"):
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

CAP = 20.0  # of layouts.py's softcap


class Requests:
    """Tensors of a row with pages, which lie in no order."""

    def __init__(self, row):
        def numbers(values):
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        def ends(counts):
            return [0, *torch.tensor(counts).cumsum(0).tolist()]
        size = row.page_size
        counts = [-(-keys // size) for _, keys in row.lengths]
        queries = [queries for queries, _ in row.lengths]
        self.q = normal(sum(queries), row.heads, row.head_dim)
        self.k, self.v = (normal(sum(counts), size, row.kv_heads, row.head_dim) for _ in range(2))
        self.q_ends, self.page_ends = numbers(ends(queries)), numbers(ends(counts))
        self.pages = torch.randperm(sum(counts), device="cuda").int()
        self.last = numbers([keys - (count - 1) * size for (_, keys), count in zip(row.lengths, counts)])
        self.keys = numbers([keys for _, keys in row.lengths])

    def last_row_of_first(self):
        """By the definition: what the first request's last query, which sees all of its keys, has."""
        pages = self.pages[:self.page_ends[1]].long()
        keys, values = (tensor[pages].flatten(0, 1)[:self.keys[0]].float() for tensor in (self.k, self.v))
        query = self.q[self.q_ends[1] - 1].float().unflatten(0, (keys.shape[1], -1))
        weights = torch.softmax(torch.einsum("ngd,knd->ngk", query, keys) * query.shape[-1] ** -0.5, -1)
        return torch.einsum("ngk,knd->ngd", weights, values).flatten(0, 1)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


_WORKSPACE = []


def workspace():
    """FlashInfer's, zero before its first use."""
    if not _WORKSPACE:
        _WORKSPACE.append(torch.zeros(384 << 20, dtype=torch.uint8, device="cuda"))
    return _WORKSPACE[0]


def flashinfer_options(row):
    options = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    if row.mod == "ALiBi":
        options["pos_encoding_mode"] = "ALIBI"
    if row.mod == "softcap":
        options["logits_soft_cap"] = CAP
    if row.window:
        options["window_left"] = row.window - 1
    return options


def flashinfer_decode(backend, tensor_cores):
    def make(row, tensors):
        from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper
        wrapper = BatchDecodeWithPagedKVCacheWrapper(workspace(), "NHD", use_tensor_cores=tensor_cores, backend=backend)

        def plan():
            wrapper.plan(tensors.page_ends, tensors.pages, tensors.last, row.heads, row.kv_heads, row.head_dim,
                         row.page_size, **flashinfer_options(row))
        return plan, lambda: wrapper.run(tensors.q, (tensors.k, tensors.v))
    return make


def flashinfer_prefill(backend):
    def make(row, tensors):
        from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper
        wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)

        def plan():
            wrapper.plan(tensors.q_ends, tensors.page_ends, tensors.pages, tensors.last, row.heads, row.kv_heads,
                         row.head_dim, row.page_size, causal=row.mask == "causal", **flashinfer_options(row))
        return plan, lambda: wrapper.run(tensors.q, (tensors.k, tensors.v))
    return make


def flashinfer_whole(row, tensors):
    from flashinfer.attention import BatchAttention
    wrapper = BatchAttention("NHD")

    def plan():
        wrapper.plan(tensors.q_ends, tensors.page_ends, tensors.pages, tensors.keys, row.heads, row.kv_heads,
                     row.head_dim, row.head_dim, row.page_size, causal=row.mask == "causal")
    return plan, lambda: wrapper.run(tensors.q, (tensors.k, tensors.v))[0]


def flashinfer_sink(row, tensors):
    from flashinfer.attention import BatchAttentionWithAttentionSinkWrapper
    wrapper = BatchAttentionWithAttentionSinkWrapper(workspace(), "NHD", backend="fa2")
    sinks = torch.zeros(row.heads, device="cuda")

    def plan():
        wrapper.plan(tensors.q_ends, tensors.page_ends, tensors.pages, tensors.last, row.heads, row.kv_heads,
                     row.head_dim, row.page_size, **flashinfer_options(row))
    return plan, lambda: wrapper.run(tensors.q, (tensors.k, tensors.v), sinks, row.head_dim ** -0.5)


def dense_tensors(row):
    queries, keys = row.lengths[0]
    for heads, length in ((row.heads, queries), (row.kv_heads, keys), (row.kv_heads, keys)):
        yield normal(len(row.lengths), heads, length, row.head_dim).requires_grad_(row.training)


def dense(backend):
    """Requests of one length, without pages."""
    def make(row, _):
        q, k, v = dense_tensors(row)

        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=row.mask == "causal",
                                                      enable_gqa=row.heads != row.kv_heads)
        return None, differentiable(run, [q, k, v], row)
    return make


def differentiable(run, inputs, row):
    """What runs forward, and backward where the row asks for it."""
    if not row.training:
        return run
    out = run()
    gradient = torch.randn_like(out)
    return run, lambda: torch.autograd.grad(out, inputs, gradient, retain_graph=True)


def flex_bias_of_a_key(row, _):
    """FlexAttention on requests of one length, without pages."""
    from torch.nn.attention.flex_attention import flex_attention
    q, k, v = dense_tensors(row)
    bias = torch.randn(len(row.lengths), k.shape[2], device="cuda") * 0.1
    attention = torch.compile(flex_attention, dynamic=False)
    return None, lambda: attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[b, j],
                                   enable_gqa=row.heads != row.kv_heads)


def document_tensors(row):
    lengths = [length for length, _ in row.lengths]
    rows = [normal(sum(lengths), row.heads, row.head_dim).requires_grad_() for _ in range(3)]
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    return rows, ends, lengths


def varlen(row, _):
    """PyTorch's FlashAttention-2 of ragged tensors."""
    from torch.nn.attention.varlen import varlen_attn
    (q, k, v), ends, lengths = document_tensors(row)
    longest = max(lengths)

    def run():
        return varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0))
    return None, differentiable(run, [q, k, v], row)


def nested(backend):
    """Nested tensors of PyTorch: how it gives ragged tensors to cuDNN."""
    def make(row, _):
        inputs, ends, lengths = document_tensors(row)

        def run():
            q, k, v = (torch.nested.nested_tensor_from_jagged(
                rows, ends.long(), min_seqlen=min(lengths), max_seqlen=max(lengths)).transpose(1, 2) for rows in inputs)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).values()
        return None, differentiable(run, inputs, row)
    return make


def flex_documents(row, _):
    """FlexAttention with a mask of documents, and slopes that learn."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    rows, _, lengths = document_tensors(row)
    q, k, v = (tensor.detach().transpose(0, 1)[None].contiguous().requires_grad_() for tensor in rows)
    document = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), torch.tensor(lengths, device="cuda"))
    slopes = (torch.randn(row.heads, device="cuda") * 0.1).requires_grad_()
    block_mask = create_block_mask(lambda b, h, i, j: (i >= j) & (document[i] == document[j]), None, None,
                                   len(document), len(document), _compile=True)
    attention = torch.compile(flex_attention, dynamic=False)

    def run():
        return attention(q, k, v, score_mod=lambda score, b, h, i, j: score + slopes[h] * (j - i),
                         block_mask=block_mask)
    return None, differentiable(run, [q, k, v, slopes], row)


def peers_of(row):
    """By name; those that offer what the row asks for."""
    if row.training:
        if row.dense:
            return {"cuDNN": dense(SDPBackend.CUDNN_ATTENTION)}
        if row.mod != "none":
            return {"FlexAttention": flex_documents}
        return {"varlen_attn": varlen, "cuDNN, nested": nested(SDPBackend.CUDNN_ATTENTION)}
    found = {}
    if importlib.util.find_spec("flashinfer"):
        decode = all(queries == 1 for queries, _ in row.lengths)
        takes_mod = row.mod in ("none", "ALiBi", "softcap")
        if decode and takes_mod:
            found["FlashInfer"] = flashinfer_decode("auto", tensor_cores=True)
            if row.heads // row.kv_heads <= 8:
                found["FlashInfer, no tensor cores"] = flashinfer_decode("auto", tensor_cores=False)
        if decode and row.mod == "none" and importlib.util.find_spec("cudnn"):
            found["cuDNN"] = flashinfer_decode("cudnn", tensor_cores=False)
        if not decode:
            found |= {"FlashInfer": flashinfer_prefill("fa3"), "FlashInfer, fa2": flashinfer_prefill("fa2")}
        if row.mod == "none" and not row.window:
            found["FlashInfer, BatchAttention"] = flashinfer_whole
        if row.mod == "sink":
            found["FlashInfer"] = flashinfer_sink
    if len(set(row.lengths)) == 1 and row.lengths[0][0] == 1 and row.mask == "none":
        if row.mod == "none":
            found["cuDNN, dense keys"] = dense(SDPBackend.CUDNN_ATTENTION)
            found["FlashAttention-2, dense keys"] = dense(SDPBackend.FLASH_ATTENTION)
        elif row.mod == "bias of a key":
            found["FlexAttention, dense keys"] = flex_bias_of_a_key
    return found


def host_ms(work, calls):
    """What a call takes of the host while the GPU has nothing to do."""
    times = []
    for _ in range(calls):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


class Peers:
    def __init__(self, limit_s):
        """limit_s is of each peer and row."""
        self.limit_s = limit_s
        self.found = importlib.util.find_spec("torch") is not None and torch.cuda.is_available()
        signal.signal(signal.SIGALRM, self.end)

    def end(self, *_):
        raise TimeoutError(f"not done in {self.limit_s} s")

    def versions(self):
        if not self.found:
            return "none"
        text = f"PyTorch {torch.__version__}, its cuDNN {torch.backends.cudnn.version()}"
        if importlib.util.find_spec("flashinfer"):
            import flashinfer
            text += f", FlashInfer {flashinfer.__version__}"
        return text

    @staticmethod
    def bench(work):
        from triton.testing import do_bench
        return do_bench(work, warmup=15, rep=60, return_mode="median")

    def copy_tb_per_s(self):
        """From one GiB to another, bytes read and written."""
        if not self.found:
            return None
        source, target = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
        return 2 * source.numel() / self.bench(lambda: target.copy_(source)) * 1e-9

    def times(self, row):
        """Of each peer: forward_ms, backward_ms, plan_ms and launch_ms, or an error."""
        found = {}
        if not self.found:
            return found
        torch.manual_seed(1)
        tensors = None
        for name, make in peers_of(row).items():
            signal.setitimer(signal.ITIMER_REAL, self.limit_s)
            try:
                tensors = tensors or (Requests(row) if row.page_size else None)
                found[name] = self.time(make, row, tensors)
            except Exception as error:  # a peer may refuse a row in any way
                found[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:160]}
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            torch.cuda.empty_cache()
        return found

    def time(self, make, row, tensors):
        plan, run = make(row, tensors)
        run, backward = run if isinstance(run, tuple) else (run, None)
        value = {}
        if plan:
            plan()
            value["plan_ms"] = host_ms(plan, 5)
        with torch.no_grad():
            out = run()
            if plan and row.mod == "none" and not row.window:
                expected = tensors.last_row_of_first()
                error = (out[tensors.q_ends[1] - 1].float() - expected).norm() / expected.norm()
                if not error < 0.02:
                    raise ValueError(f"its output is wrong by {error:.3g}")
            value["launch_ms"] = host_ms(run, 21)
            value["forward_ms"] = self.bench(run)
        if backward:
            backward()
            value["backward_ms"] = self.bench(backward)
        return value
