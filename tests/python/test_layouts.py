"""Ragged and paged layouts, request by request against float64."""
import random

import numpy as np
import pytest

import flexc
from conftest import Reference, close, seeds

HEADS, KV_HEADS, DIM = 4, 2, 8
ALIBI = "score + slopes[h] * (kv_idx - q_idx)"
CAUSAL = "q_idx >= kv_idx"
SLOPES = np.linspace(-0.5, 0.5, HEADS, dtype=np.float32)


def compiled(text="score", **options):
    return flexc.compile(text, **{"dtype": "f32", "head_dim": DIM, "device": "cpu", **options})


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def cumulated(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)


class Batch:
    """Requests by their lengths: rows of q, and keys in rows or in pages."""

    def __init__(self, q_lens, kv_lens, pages_of=None, page_size=4, pages=16, seed=0):
        self.q_lens, self.kv_lens, self.pages_of = q_lens, kv_lens, pages_of
        self.cu_seqlens_q, self.cu_seqlens_k = cumulated(q_lens), cumulated(kv_lens)
        self.q = normal(seed, sum(q_lens), HEADS, DIM)
        rows = (pages, page_size) if pages_of is not None else (sum(kv_lens),)
        self.k, self.v = normal(seed + 1, *rows, KV_HEADS, DIM), normal(seed + 2, *rows, KV_HEADS, DIM)

    def keys(self, array, b):
        if self.pages_of is None:
            return array[self.cu_seqlens_k[b]:][:self.kv_lens[b]]
        return array[self.pages_of[b]].reshape(-1, *array.shape[2:])[:self.kv_lens[b]]

    def queries(self, array, b):
        return array[self.cu_seqlens_q[b]:self.cu_seqlens_q[b + 1]]

    def reference(self, b, *program, k=None, v=None, **options):
        """Of request b, as [H, Q_LEN, ...] of a batch of one."""
        q, k, v = (x.swapaxes(0, 1)[None] for x in (self.queries(self.q, b), self.keys(self.k if k is None else k, b),
                                                    self.keys(self.v if v is None else v, b)))
        end = self.kv_lens[b] - self.q_lens[b] if self.pages_of is not None else 0
        return Reference(q, k, v, *program, **{"request": (b, len(self.q_lens)), "q_start": end, **options})

    def check(self, out, lse, *program, tolerance=1e-5, **options):
        for b, q_len in enumerate(self.q_lens):
            wanted = self.reference(b, *program, **options)
            close(self.queries(out, b).swapaxes(0, 1)[None], wanted.out, tolerance)
            close(self.queries(lse, b).swapaxes(0, 1)[None], wanted.lse, tolerance)

    def csr(self):
        used = [-(-kv_len // self.k.shape[1]) for kv_len in self.kv_lens]
        return {"page_indptr": cumulated(used),
                "page_indices": [page for pages, count in zip(self.pages_of, used) for page in pages[:count]],
                "last_page_len": [kv_len - (count - 1) * self.k.shape[1] if count else 1
                                  for kv_len, count in zip(self.kv_lens, used)]}


def pages_for(picks, kv_lens, page_size, pages):
    """Shuffled pages; the second request begins with the first one's pages."""
    lists = [picks.sample(range(pages), -(-kv_len // page_size)) for kv_len in kv_lens]
    shared = min(len(lists[0]), len(lists[1])) // 2
    lists[1][:shared] = lists[0][:shared]
    return lists


PROGRAMS = [("score", "True"), (ALIBI, CAUSAL), ("score * 0.5 + gain[b] * tanh(score)", "q_idx - kv_idx < 5"),
            ("score - 0.1 * abs(q_idx - kv_idx) + KV_LEN * 0.01 + Q_LEN * 0.1", "(q_idx >= kv_idx) | (kv_idx < 2)")]
DECLARED = {"slopes": "f32[H]", "gain": "f32[B]"}


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("how", ["ragged", "table", "csr"])
def test_random_requests(how, seed):
    picks = random.Random(seed)
    count, page_size = picks.randrange(2, 6), picks.choice([1, 3, 4, 16])
    q_lens = [picks.choice([0, 1, 1, picks.randrange(30)]) for _ in range(count)]
    kv_lens = [picks.choice([0, 1, picks.randrange(60)]) for _ in range(count)]
    pages_of = None if how == "ragged" else pages_for(picks, kv_lens, page_size, 64)
    batch = Batch(q_lens, kv_lens, pages_of, page_size, 64, seed)
    score, mask = picks.choice(PROGRAMS)
    buffers = {"slopes": SLOPES, "gain": normal(seed, count)}
    kernel = compiled(score, mask_mod=mask, buffers=DECLARED, backward=False, query_layout="ragged",
                      key_layout="ragged" if how == "ragged" else "paged")
    lengths = {"ragged": {"cu_seqlens_k": batch.cu_seqlens_k}, "table": {"seqused_k": kv_lens, "page_table": pages_of},
               "csr": None if pages_of is None else batch.csr()}[how]
    out, lse = kernel.forward(batch.q, batch.k, batch.v, buffers, cu_seqlens_q=batch.cu_seqlens_q, **lengths)
    batch.check(out, lse, score, mask, buffers)


@pytest.mark.parametrize("seed", seeds(5))
def test_gradients(seed):
    picks = random.Random(seed)
    q_lens, kv_lens = [[picks.choice([1, 7, 0, picks.randrange(40)]) for _ in range(4)] for _ in range(2)]
    batch = Batch(q_lens, kv_lens, seed=seed)
    kernel = compiled(ALIBI, mask_mod=CAUSAL, buffers={"slopes": "f32[H] grad"}, query_layout="ragged",
                      key_layout="ragged")
    plan = kernel.plan(batch.q, batch.k, batch.v, cu_seqlens_q=batch.cu_seqlens_q, cu_seqlens_k=batch.cu_seqlens_k)
    buffers = {"slopes": SLOPES}
    out, lse = plan.forward(batch.q, batch.k, batch.v, buffers)
    batch.check(out, lse, ALIBI, CAUSAL, buffers)
    d_out, d_lse = normal(seed + 5, *out.shape), normal(seed + 6, *lse.shape)
    d_lse[np.isneginf(lse)] = 0
    gradients = plan.backward(batch.q, batch.k, batch.v, out, lse, d_out, buffers, d_lse=d_lse)
    group, d_slopes = HEADS // KV_HEADS, np.zeros(HEADS)
    for b in range(4):
        wanted = batch.reference(b, ALIBI, CAUSAL, buffers)
        q, d_o, sums = (batch.queries(x, b).swapaxes(0, 1).astype(np.float64) for x in (batch.q, d_out, d_lse))
        k, v = (np.repeat(batch.keys(x, b).swapaxes(0, 1).astype(np.float64), group, 0) for x in (batch.k, batch.v))
        weights = wanted.weights[0]
        d_weights = d_o @ v.swapaxes(1, 2)
        d_score = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True) + sums[..., None])
        distance = np.arange(kv_lens[b]) - np.arange(q_lens[b])[:, None]
        d_slopes += (d_score * distance).sum((1, 2))

        def of_group(x):
            return x.reshape(KV_HEADS, group, *x.shape[1:]).sum(1).swapaxes(0, 1)
        close(batch.queries(gradients.q, b), (d_score @ k / np.sqrt(DIM)).swapaxes(0, 1))
        close(batch.keys(gradients.k, b), of_group(d_score.swapaxes(1, 2) @ q / np.sqrt(DIM)))
        close(batch.keys(gradients.v, b), of_group(weights.swapaxes(1, 2) @ d_o))
    close(gradients.buffers["slopes"], d_slopes)


def test_steps_of_a_server():
    """Requests grow by a token, are cut, end and begin again; the cache grows."""
    kernel = compiled(ALIBI, mask_mod=CAUSAL, buffers={"slopes": "f32[H]"}, query_layout="ragged", key_layout="paged",
                      backward=False)
    buffers, pages_of = {"slopes": SLOPES}, [[3, 9, 1, 12], [5, 9], [0, 2, 4, 6, 8]]
    first = Batch([5, 1, 2], [5, 6, 17], pages_of)
    plan = kernel.plan(first.q, first.k, first.v, buffers, q_len=8, kv_len=20, page_size=4,
                       cu_seqlens_q=first.cu_seqlens_q, seqused_k=first.kv_lens, page_table=pages_of)
    first.check(*plan.forward(first.q, first.k, first.v, buffers), ALIBI, CAUSAL, buffers)
    for step, (q_lens, kv_lens) in enumerate([([1, 1, 1], [6, 7, 18]), ([8, 0, 1], [14, 0, 3]), ([0, 0, 0], [0, 0, 0]),
                                              ([1, 8, 3], [15, 8, 20])]):
        batch = Batch(q_lens, kv_lens, pages_of, pages=16 + step, seed=step)
        plan.update(cu_seqlens_q=batch.cu_seqlens_q, seqused_k=kv_lens, page_table=pages_of, pages=16 + step)
        batch.check(*plan.forward(batch.q, batch.k, batch.v, buffers), ALIBI, CAUSAL, buffers)
        plan.update(cu_seqlens_q=batch.cu_seqlens_q, **batch.csr())
        batch.check(*plan.forward(batch.q, batch.k, batch.v, buffers), ALIBI, CAUSAL, buffers)
    with pytest.raises(flexc.errors.InvalidOption, match="request 1 has 9 queries; the plan's q_len allows 8"):
        plan.update(cu_seqlens_q=[0, 1, 10, 11], seqused_k=[1, 1, 1], page_table=pages_of)
    batch.check(*plan.forward(batch.q, batch.k, batch.v, buffers), ALIBI, CAUSAL, buffers)  # as it was


def test_training_with_other_documents():
    kernel = compiled(query_layout="ragged", key_layout="ragged")
    plan = None
    for lengths in ([10, 20, 2], [2, 0, 30], [1, 1, 1]):
        batch = Batch(lengths, lengths, seed=sum(lengths))
        cu_seqlens = {"cu_seqlens_q": batch.cu_seqlens_q, "cu_seqlens_k": batch.cu_seqlens_k}
        if plan is None:
            plan = kernel.plan(batch.q, batch.k, batch.v, q_len=32, kv_len=32, **cu_seqlens)
        plan.update(**cu_seqlens)
        out, lse = plan.forward(batch.q, batch.k, batch.v)
        batch.check(out, lse)
        gradients = plan.backward(batch.q, batch.k, batch.v, out, lse, np.ones_like(out))
        # Of v, all weights of a row are 1 together.
        close(gradients.v.sum(0), np.full((KV_HEADS, DIM), sum(lengths) * HEADS // KV_HEADS))


def test_rows_that_are_not_used():
    """seqused: 0 and -inf. Rows of nobody: 0 in what flexc makes, and left alone in what it is given."""
    batch = Batch([6, 5], [7, 9])
    kernel = compiled(query_layout="ragged", key_layout="ragged", max_scores=True)
    q, k, v = (np.concatenate([x, np.full((3, *x.shape[1:]), np.nan, np.float32)]) for x in (batch.q, batch.k, batch.v))
    lengths = {"cu_seqlens_q": batch.cu_seqlens_q, "cu_seqlens_k": batch.cu_seqlens_k, "seqused_q": [4, 5],
               "seqused_k": [2, 9]}
    plan = kernel.plan(q, k, v, **lengths)
    out, lse, max_scores = plan.forward(q, k, v)
    batch.kv_lens = [2, 9]
    wanted = [batch.reference(b).out[0].swapaxes(0, 1) for b in range(2)]
    close(out, np.concatenate([wanted[0][:4], np.zeros((2, HEADS, DIM)), wanted[1], np.zeros((3, HEADS, DIM))]))
    for rows in (lse, max_scores):
        assert np.isneginf(rows[4:6]).all() and (rows[11:] == 0).all()
    close(max_scores[6:11], batch.reference(1).modified[0].max(-1).swapaxes(0, 1))
    given = np.full_like(out, 7)
    plan.forward(q, k, v, out=given)
    assert (given[11:] == 7).all() and (given[:11] == out[:11]).all()
    gradients = plan.backward(q, k, v, out, lse, np.ones_like(out))
    for gradient, unused in ((gradients.q, [4, 5, 11, 12, 13]), (gradients.k, [2, 3, 4, 5, 6, 16, 17, 18]),
                             (gradients.v, [2, 3, 4, 5, 6, 16, 17, 18])):
        assert (gradient[unused] == 0).all() and np.isfinite(gradient).all()


def test_dense_queries_of_a_cache():
    """[B, H, 1, D], as a step of decoding has them, on a cache with heads before slots."""
    pages_of, kv_lens = [[7, 3], [1], [3, 0]], [5, 2, 8]
    batch = Batch([1, 1, 1], kv_lens, pages_of)
    q = batch.q[:, :, None]
    k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (batch.k, batch.v))
    kernel = compiled(key_layout="paged", mask_mod=CAUSAL)
    out, lse = kernel.forward(q, k, v, seqused_k=kv_lens, page_table=pages_of)
    assert out.shape == (3, HEADS, 1, DIM) and lse.shape == (3, HEADS, 1)
    batch.check(out[:, :, 0], lse[:, :, 0], "score", CAUSAL)


def test_where_queries_begin():
    batch = Batch([4, 2], [9, 5])
    kernel = compiled("score + 0.3 * q_idx * kv_idx", mask_mod=CAUSAL, query_layout="ragged", key_layout="ragged")
    cu_seqlens = {"cu_seqlens_q": batch.cu_seqlens_q, "cu_seqlens_k": batch.cu_seqlens_k}
    for given, starts in (({}, (0, 0)), ({"query_start": "zero"}, (0, 0)), ({"query_start": "end"}, (5, 3)),
                          ({"query_starts": [2, -1]}, (2, -1))):
        out, lse = kernel.forward(batch.q, batch.k, batch.v, **cu_seqlens, **given)
        for b in range(2):
            wanted = batch.reference(b, "score + 0.3 * q_idx * kv_idx", CAUSAL, q_start=starts[b])
            close(batch.queries(out, b).swapaxes(0, 1)[None], wanted.out)
    with pytest.raises(flexc.errors.InvalidOption, match="query_start is one of auto, zero, end"):
        kernel.plan(batch.q, batch.k, batch.v, **cu_seqlens, query_start="start")


def wide(numbers):
    return np.asarray(numbers, np.int64)


def strided(numbers):
    return np.repeat(np.asarray(numbers, np.int32), 2, axis=-1)[..., ::2]


def reversed_twice(numbers):
    return np.asarray(numbers, np.int64)[..., ::-1].copy()[..., ::-1]


def of_torch(numbers):
    return pytest.importorskip("torch").tensor(numbers)


@pytest.mark.parametrize("form", [list, tuple, wide, strided, reversed_twice, of_torch])
def test_forms_of_arrays(form):
    pages_of, kv_lens = [[7, 3, 2], [1, 9, 4]], [9, 3]
    batch = Batch([2, 3], kv_lens, pages_of)
    kernel = compiled(query_layout="ragged", key_layout="paged")
    plan = kernel.plan(batch.q, batch.k, batch.v, cu_seqlens_q=form([0, 2, 5]), seqused_k=form(kv_lens),
                       page_table=form(pages_of))
    batch.check(*plan.forward(batch.q, batch.k, batch.v))
    plan.update(cu_seqlens_q=form([0, 2, 5]), page_indptr=form([0, 3, 4]), page_indices=form([7, 3, 2, 1]),
                last_page_len=form([1, 3]), query_starts=form([7, 0]))
    batch.check(*plan.forward(batch.q, batch.k, batch.v))


def test_int8_pages_with_scales():
    pages_of, kv_lens = [[7, 3], [1, 7, 2]], [5, 9]
    batch = Batch([2, 1], kv_lens, pages_of)
    k, v = (np.random.default_rng(seed).integers(-127, 127, batch.k.shape).astype(np.int8) for seed in (1, 2))
    scales = [np.random.default_rng(seed).uniform(0.005, 0.02, (16, KV_HEADS)).astype(np.float32) for seed in (3, 4)]
    kernel = compiled(query_layout="ragged", key_layout="paged", kv_dtype="i8", backward=False)
    out, lse = kernel.forward(batch.q, k, v, cu_seqlens_q=batch.cu_seqlens_q, seqused_k=kv_lens, page_table=pages_of,
                              k_scale=scales[0], v_scale=scales[1])
    batch.check(out, lse, k=k * scales[0][:, None, :, None], v=v * scales[1][:, None, :, None])


def test_batch_invariant():
    kernel = compiled(query_layout="ragged", key_layout="ragged", batch_invariant=True, backward=False)
    batch = Batch([1, 1, 40], [4000, 50, 40])
    out, lse = kernel.forward(batch.q, batch.k, batch.v, cu_seqlens_q=batch.cu_seqlens_q,
                              cu_seqlens_k=batch.cu_seqlens_k)
    for b in range(3):
        alone = kernel.forward(*(np.ascontiguousarray(x) for x in (batch.queries(batch.q, b), batch.keys(batch.k, b),
                                                                   batch.keys(batch.v, b))),
                               cu_seqlens_q=[0, batch.q_lens[b]], cu_seqlens_k=[0, batch.kv_lens[b]])
        assert (alone[0] == batch.queries(out, b)).all() and (alone[1] == batch.queries(lse, b)).all()


def test_some_of_the_heads():
    batch = Batch([3, 2], [6, 4])
    kernel = compiled(ALIBI, buffers={"slopes": "f32[H]"}, query_layout="ragged", key_layout="ragged",
                      part_of_heads=True)
    cu_seqlens = {"cu_seqlens_q": batch.cu_seqlens_q, "cu_seqlens_k": batch.cu_seqlens_k}
    whole, _ = kernel.forward(batch.q, batch.k, batch.v, {"slopes": SLOPES}, **cu_seqlens)
    half, _ = kernel.forward(batch.q[:, 2:], batch.k[:, 1:], batch.v[:, 1:], {"slopes": SLOPES}, head_offset=2,
                             global_heads=HEADS, global_kv_heads=KV_HEADS, **cu_seqlens)
    close(half, whole[:, 2:])


def test_sink():
    batch = Batch([3, 1], [6, 0])
    kernel = compiled(sink="drain[h]", buffers={"drain": "f32[H]"}, query_layout="ragged", key_layout="ragged")
    assert kernel.signature.sink_depends_on == ["h"] and flexc.check("score").sink_depends_on == []
    out, lse = kernel.forward(batch.q, batch.k, batch.v, {"drain": SLOPES}, cu_seqlens_q=batch.cu_seqlens_q,
                              cu_seqlens_k=batch.cu_seqlens_k)
    batch.check(out, lse, buffers={"drain": SLOPES}, sink="drain[h]")


def test_merge_states():
    batch = Batch([3, 1, 2], [8, 5, 6])
    kernel = compiled("score", query_layout="ragged", key_layout="ragged", backward=False)

    def of_keys(begin, end):
        rows = [row for b in range(3) for row in range(batch.cu_seqlens_k[b], batch.cu_seqlens_k[b + 1])[begin:end]]
        counts = [len(range(n)[begin:end]) for n in batch.kv_lens]
        return kernel.forward(batch.q, batch.k[rows], batch.v[rows], cu_seqlens_q=batch.cu_seqlens_q,
                              cu_seqlens_k=cumulated(counts))
    parts = [of_keys(0, 2), of_keys(2, 6), of_keys(6, 8)]  # of which the second request has none
    out, lse = flexc.merge_states(parts)
    batch.check(out, lse)
    other = np.empty((6, HEADS, DIM), np.float16)
    assert flexc.merge_states(iter(parts), out=other, lse=lse)[0] is other
    close(other, out, 1e-3)
    with pytest.raises(flexc.errors.InvalidOption, match="lse"):
        flexc.merge_states([(out, lse[:2]), (out, lse)])
    with pytest.raises(flexc.errors.InvalidOption, match="no parts"):
        flexc.merge_states([])
    assert (flexc.merge_states([], out=out, lse=lse)[0] == 0).all() and np.isneginf(lse).all()


RAGGED = {"query_layout": "ragged", "key_layout": "ragged"}
PAGED = {"query_layout": "ragged", "key_layout": "paged"}
OF_RAGGED = {"cu_seqlens_q": [0, 3, 5], "cu_seqlens_k": [0, 4, 9]}
OF_PAGED = {"cu_seqlens_q": [0, 3, 5], "seqused_k": [4, 5], "page_table": [[1], [2, 3]]}


@pytest.mark.parametrize("layouts, given, message", [
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": [0, 3, 2]}, r"cu_seqlens_q\[2\] is 2, which is below cu_seqlens_q\[1\] = 3"),
    (RAGGED, {"cu_seqlens_k": [0, 4, 9]}, "cu_seqlens_q: missing"),
    (RAGGED, {"cu_seqlens_q": [0, 3, 5]}, "cu_seqlens_k: missing; expected 3 numbers"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_k": [0, 4]}, "cu_seqlens_k: expected 3 numbers, got 2"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": [[0, 3, 5]]}, "cu_seqlens_q: expected integers"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": np.zeros((1, 3), np.int32)},
     r"cu_seqlens_q: expected \[B \+ 1\], got the shape \[1, 3\]"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": [0, 3.0, 5]}, "cu_seqlens_q: expected integers.* number 1 is none"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": np.array([0, 3, 5.])},
     "cu_seqlens_q: expected integers, i32 or i64, got f64"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_q": [0, 3, 2**31]}, "cu_seqlens_q: 2147483648 does not fit in 32 bits"),
    (RAGGED, {**OF_RAGGED, "cu_seqlens_k": np.array([0, 4, 2**40])}, "cu_seqlens_k: 1099511627776 does not fit"),
    (RAGGED, {**OF_RAGGED, "seqused_q": [4, 2]}, r"seqused_q\[0\] is 4; the request has 3 rows"),
    (RAGGED, {**OF_RAGGED, "seqused_k": [-1, 2]}, r"seqused_k\[0\] is -1"),
    (RAGGED, {**OF_RAGGED, "q_len": 2}, "request 0 has 3 queries; the plan's q_len allows 2"),
    (RAGGED, {**OF_RAGGED, "page_table": [[0]]}, "page_table: "),
    (RAGGED, {**OF_RAGGED, "page_size": 4}, "page_size is 4; the layouts have none"),
    (RAGGED, {**OF_RAGGED, "q_offset": 1}, "query_starts"),
    (PAGED, {**OF_PAGED, "page_size": 16}, "page_size is 16; the tensors have 4"),
    (PAGED, {**OF_PAGED, "page_table": [[1], [2, 16]]}, "page 1 of request 1 is 16; the cache has 16 pages"),
    (PAGED, {**OF_PAGED, "page_table": [[], [2, 1]], "seqused_k": [1, 5]}, "page 0 of request 0 is -1"),
    (PAGED, {**OF_PAGED, "page_table": [[1, 0], [2, 3], [4, 5]]}, "page_table: has 3 rows; there are 2 requests"),
    (PAGED, {**OF_PAGED, "page_table": [1, 2]}, r"page_table: expected a list of \[B, MAX_PAGES\]"),
    (PAGED, {**OF_PAGED, "page_table": np.zeros(2, np.int32)}, r"page_table: expected \[B, MAX_PAGES\]"),
    (PAGED, {**OF_PAGED, "seqused_k": [4, 9]}, r"seqused_k\[1\] is 9; the request's pages have 8 slots"),
    (PAGED, {**OF_PAGED, "seqused_k": None}, "seqused_k: missing"),
    (PAGED, {**OF_PAGED, "page_indptr": [0, 1, 2]}, "page_table: pages are given by page_indptr too"),
    (PAGED, {"cu_seqlens_q": [0, 1], "page_indptr": [0, 2], "page_indices": [1], "last_page_len": [1]},
     "page_indptr ends at 2; page_indices has 1 numbers"),
    (PAGED, {"cu_seqlens_q": [0, 1], "page_indptr": [0, 1], "page_indices": [1], "last_page_len": [5]},
     r"last_page_len\[0\] is 5; it must be between 1 and the page size, 4"),
])
def test_errors(layouts, given, message):
    kernel = compiled(**layouts, backward=False)
    batch = Batch([3, 2], [4, 5], [[1], [2, 3]] if layouts is PAGED else None)
    with pytest.raises(flexc.errors.InvalidOption, match=message):
        kernel.plan(batch.q, batch.k, batch.v, **given)
    plan = kernel.plan(batch.q, batch.k, batch.v, **(OF_PAGED if layouts is PAGED else OF_RAGGED))
    if not {"q_len", "page_size", "q_offset"} & set(given):
        with pytest.raises(flexc.errors.InvalidOption):
            plan.update(**given)
    batch.check(*plan.forward(batch.q, batch.k, batch.v))


def test_errors_of_tensors():
    batch = Batch([3, 2], [4, 5])
    kernel = compiled(**RAGGED)
    with pytest.raises(flexc.errors.InvalidOption,
                       match=r"q has 3 dims, \[TOTAL_Q, H, D\], not the shape \(1, 5, 4, 8\)"):
        kernel.plan(batch.q[None], batch.k, batch.v, **OF_RAGGED)
    with pytest.raises(flexc.errors.InvalidOption, match=r"v has 3 dims, \[TOTAL_K, H_KV, DV\]"):
        kernel.plan(batch.q, batch.k, batch.v[None], **OF_RAGGED)
    plan = kernel.plan(batch.q, batch.k, batch.v, **OF_RAGGED)
    with pytest.raises(flexc.errors.InvalidOption, match="q: "):
        plan.forward(batch.q[:4], batch.k, batch.v)
    with pytest.raises(flexc.errors.InvalidOption, match="k: "):
        plan.forward(batch.q, batch.k[:8], batch.v)
    with pytest.raises(flexc.errors.InvalidOption, match="buffers, or lengths"):
        plan.update()
    paged = compiled(**PAGED)
    batch = Batch([3, 2], [4, 5], [[1], [2, 3]])
    plan = paged.plan(batch.q, batch.k, batch.v, **OF_PAGED)
    out, lse = plan.forward(batch.q, batch.k, batch.v)
    with pytest.raises(flexc.errors.Unsupported, match="paged keys are forward only"):
        plan.backward(batch.q, batch.k, batch.v, out, lse, out)
    with pytest.raises(flexc.errors.InvalidOption, match="queries are dense or ragged: pages are for keys"):
        compiled(query_layout="paged")
    with pytest.raises(flexc.errors.InvalidOption, match="key_layout is one of dense, ragged, paged"):
        compiled(key_layout="page")
    dense = [normal(1, 1, HEADS, 5, DIM)] * 3
    with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_q: the kernel was compiled for dense tensors"):
        compiled().plan(*dense, cu_seqlens_q=[0, 5])
    with pytest.raises(flexc.errors.InvalidOption, match="kv_len is 6; the tensors have 5"):
        compiled().plan(*dense, kv_len=6)
    with pytest.raises(flexc.errors.InvalidOption, match="compiled for dense tensors"):
        compiled().plan(*dense).update(cu_seqlens_q=[0, 5])


class OnDevice:
    """An array that says it is on a GPU."""

    def __init__(self, numbers):
        self.array = np.array(numbers, np.int32)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **given):
        return self.array.__dlpack__()


def test_lengths_on_another_device():
    batch = Batch([3, 2], [4, 5])
    kernel = compiled(**RAGGED)
    plan = kernel.plan(batch.q, batch.k, batch.v, **OF_RAGGED)
    for call in (lambda **given: kernel.plan(batch.q, batch.k, batch.v, **given), plan.update):
        with pytest.raises(flexc.errors.InvalidOption, match="cu_seqlens_q: is on another device than the kernel"):
            call(cu_seqlens_q=OnDevice([0, 3, 5]), cu_seqlens_k=OnDevice([0, 4, 9]))
        with pytest.raises(ValueError, match="cu_seqlens_k: is on another device than the arrays before it"):
            call(cu_seqlens_q=[0, 3, 5], cu_seqlens_k=OnDevice([0, 4, 9]))


def test_mask_of_one_request():
    kernel = compiled("score", mask_mod=CAUSAL, query_layout="ragged", key_layout="paged")
    assert kernel.mask(256, 256).rows() == ["/.", "#/"]
