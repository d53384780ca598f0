#!/usr/bin/env python3
"""attention-gym's score and mask functions on flexc beside PyTorch's eager flex_attention in float64, on the CPU.

The functions are attention-gym's own, called as its examples call them; FOLDER is a checkout of that project, which is
not part of this one. Output, lse and the gradients of query, key, value and of the tensors that a function learns are
compared. Masks run three times: with flexc's create_block_mask, with PyTorch's BlockMask, and with ALiBi besides.
"""
import argparse
import importlib
import pathlib
import platform
import sys
import traceback
import types
import warnings

import torch
from torch.nn.attention import flex_attention as pytorch

import flexc
from flexc.torch import create_block_mask, flex_attention
from test_torch import wanted

TOLERANCE = 5e-5  # of the largest element


def gym(name):
    return importlib.import_module(f"attn_gym.{name}")


def learned(*shape):
    return torch.randn(shape, requires_grad=True)


def ring(nodes):
    """Two graphs: a ring, and a ring with a chord."""
    adjacency = torch.zeros(2, nodes, nodes, dtype=torch.bool)
    place = torch.arange(nodes)
    adjacency[:, place, (place + 1) % nodes] = True
    adjacency[1, 0, nodes // 2] = True
    return adjacency | adjacency.transpose(1, 2)


OFFSETS = torch.tensor([0, 50, 51, 140, 200, 256], dtype=torch.int32)


def spatial_bias():
    module, table = gym("mods.graphormer"), learned(4, 7)
    return module.generate_graphormer_spatial_bias(table, module.shortest_path_distances(ring(36), 5)), [table]


def edge_bias():
    module, table = gym("mods.graphormer"), learned(4, 3, 5)
    types_of, lengths = module.shortest_path_edge_types(ring(36), torch.randint(0, 5, (2, 36, 36)), 3)
    return module.generate_graphormer_edge_bias(table, types_of, lengths), [table]


def latent_rope(scale):
    query_rope, key_rope = learned(2, 4, 64, 8), learned(2, 1, 64, 8)
    made = gym("mods.latent_attention").generate_mla_rope_score_mod(query_rope, key_rope, 4, scale)
    return made, [query_rope, key_rope]


def activation(function, offset=1.0):
    return lambda: (gym("mods.activation").generate_activation_score_mod(function, offset), [])


def softcap(cap, approx=False):
    return lambda: (gym("mods.softcapping").generate_tanh_softcap(cap, approx), [])


# name: (length of queries, length of keys, what makes the score_mod and lists what it learns)
SCORES = {
    "alibi": (96, 96, lambda: (gym("mods.alibi").generate_alibi_bias(4), [])),
    "softcap 20": (96, 96, softcap(20)),
    "softcap 50": (64, 96, softcap(50)),
    "softcap 20, approximate": (96, 96, softcap(20, True)),
    "sandwich": (96, 96, lambda: (gym("mods.sandwich").generate_sandwich_bias(4, 96), [])),
    "graphormer, spatial": (36, 36, spatial_bias),
    "graphormer, edges": (36, 36, edge_bias),
    "latent attention's rope": (64, 64, lambda: latent_rope(1.0)),
    "latent attention's rope, scaled": (64, 64, lambda: latent_rope(0.25)),
    "activation: gelu": (96, 96, activation(torch.nn.functional.gelu)),
    "activation: relu": (96, 96, activation(torch.nn.functional.relu)),
    "activation: sigmoid": (96, 96, activation(torch.sigmoid, 0.5)),
    "activation: silu": (96, 96, activation(torch.nn.functional.silu)),
}


def documents(inner):
    return gym("masks.document_mask").generate_doc_mask_mod(inner, OFFSETS)


def causal():
    return gym("masks.causal").causal_mask


def window(size):
    return gym("masks.sliding_window").generate_sliding_window(size)


def natten(kind, *sizes):
    return getattr(gym("masks.natten"), f"generate_{kind}")(*sizes)


def tree():
    module = gym("masks.jetspec")
    ancestors = module.build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 2, 3, 6], "cpu")
    return module.generate_jetspec_tree_causal_mask_mod(40, ancestors)


def chosen(count=3):
    random = torch.Generator().manual_seed(3)
    return torch.rand(2, 4, 8, 8, generator=random).topk(count, -1).indices.to(torch.int32)


SIZES = torch.tensor([32, 32, 20, 32, 7, 32, 32, 1], dtype=torch.int32)


def vsa(name, *arguments):
    return getattr(gym("masks.vsa"), name)(*arguments)


def tiles():
    return vsa("generate_vsa_mask_mod", chosen(), 32)


def ragged_tiles():
    return vsa("generate_vsa_mask_mod", chosen(), 32, SIZES)


def video(kind, **options):
    return getattr(gym("masks.svg"), f"generate_{kind}_head_mask_mod")(
        prompt_length=20, num_frames=4, token_per_frame=50, **options)


# name: (length of queries, length of keys, what makes the mask_mod, or PyTorch's BlockMask, of which PyTorch's eager
# reads only the mask_mod: then the mask_mod that shows the same)
MASKS = {
    "causal": (96, 96, causal),
    "causal, made from blocks": (256, 256, lambda: gym("masks.causal").create_causal_block_mask_fast(
        2, 4, 256, 256, torch.device("cpu"), 64), causal),
    "causal, made from blocks, none full": (256, 256, lambda: gym("masks.causal").create_causal_block_mask_fast(
        None, None, 256, 256, torch.device("cpu"), 64, False), causal),
    "sliding window": (200, 200, lambda: window(31)),
    "dilated window": (200, 200, lambda: gym("masks.dilated_sliding_window").generate_dilated_sliding_window(60, 3)),
    "global and window": (200, 200, lambda: gym("masks.global_sliding_window").generate_global_sliding_window(
        9, torch.arange(200) % 67 == 0)),
    "prefix": (96, 96, lambda: gym("masks.prefix_lm").generate_prefix_lm_mask(33)),
    "documents": (256, 256, lambda: documents(pytorch.noop_mask)),
    "documents, causal": (256, 256, lambda: documents(causal())),
    "documents, window": (256, 256, lambda: documents(window(20))),
    "documents, prefix": (256, 256, lambda: documents(gym("masks.prefix_lm").generate_prefix_lm_mask(7))),
    "packed causal documents": (256, 256, lambda: gym(
        "masks.document_mask").generate_packed_causal_doc_mask_mod(OFFSETS)),
    "shared prefix": (256, 256, lambda: gym("masks.shared_prefix").generate_shared_prefix_mask_mod(
        OFFSETS, torch.tensor([0, 0, 0, 3, 3]))),
    "batches in a row": (192, 192, lambda: gym("masks.batchify").batchify_mask_mod(causal(), 48)),
    "batches in a row, window": (192, 192, lambda: gym("masks.batchify").batchify_mask_mod(window(10), 64)),
    "block diffusion": (128, 128, lambda: gym("masks.block_diffusion").generate_block_diffusion_mask(64, 16)),
    "images across text": (128, 96, lambda: gym("masks.flamingo").generate_vision_cross_attention_mask_mod(
        torch.tensor([[0, 40], [40, 41], [60, 128]]), 32)),
    "draft tree": (9, 49, tree),
    "draft training": (60, 100, lambda: gym("masks.jetspec").generate_jetspec_training_mask_mod(40, 12)),
    "neighborhood": (192, 192, lambda: natten("natten", 16, 12, 5, 3)),
    "neighborhood in tiles": (256, 256, lambda: natten("tiled_natten", 16, 16, 5, 5, 4, 4)),
    "neighborhood in Morton order": (256, 256, lambda: natten("morton_natten", 16, 16, 5, 5)),
    "sliding tiles": (256, 256, lambda: gym("masks.sta").generate_sta_mask_mod_2d((16, 16), (8, 12), (4, 4))),
    "sliding tiles and text": (270, 270, lambda: gym("masks.sta").generate_sta_mask_mod_2d(
        (16, 16), (8, 8), (4, 4), 10)),
    "sliding tiles of a video": (256, 256, lambda: gym("masks.sta").generate_sta_mask_mod_3d(
        (4, 8, 8), (2, 4, 6), (2, 2, 2))),
    "sliding tiles of a video and text": (266, 266, lambda: gym("masks.sta").generate_sta_mask_mod_3d(
        (4, 8, 8), (4, 4, 4), (2, 4, 4), 7)),
    "spatial head": (220, 220, lambda: video("spatial", width=2, round_width=16)),
    "spatial head with a sink": (220, 220, lambda: video("spatial", width=1, attn_sink=True, round_width=16)),
    "temporal head": (220, 220, lambda: video("temporal", width=2)),
    "chosen tiles": (256, 256, tiles),
    "chosen ragged tiles": (256, 256, ragged_tiles),
    "map of tiles": (256, 256, lambda: vsa("generate_vsa_block_map_mask_mod", torch.rand(2, 4, 8, 8) > 0.6, 32)),
    "map of ragged tiles": (256, 256, lambda: vsa(
        "generate_vsa_block_map_mask_mod", torch.rand(2, 4, 8, 8) > 0.6, 32, SIZES)),
    "padding of tiles": (256, 256, lambda: vsa("generate_vsa_padding_mask_mod", SIZES, 32)),
    "chosen tiles, made from blocks": (256, 256, lambda: vsa("create_vsa_block_mask", chosen(), 32, 8), tiles),
    "chosen ragged tiles, made from blocks": (256, 256, lambda: vsa(
        "create_vsa_block_mask", chosen(), 32, 8, SIZES), ragged_tiles),
    "chosen tiles, made from smaller blocks": (256, 256, lambda: vsa(
        "create_vsa_flash_block_mask", chosen(), 32, 8, 16), tiles),
    "chosen ragged tiles, made from smaller blocks": (256, 256, lambda: vsa(
        "create_vsa_flash_block_mask", chosen(), 32, 8, 16, SIZES), ragged_tiles),
}


class NoReference(Exception):
    """PyTorch could not compute the function."""


def reference(inputs, captured, weights, score_mod, block_mask):
    """By PyTorch's eager flex_attention; where that fails, by its vmap of the score_mod over the whole matrix."""
    def eager():
        return pytorch.flex_attention(*inputs, score_mod, block_mask, return_lse=True)

    def whole():
        return wanted(*inputs, score_mod, block_mask and block_mask.mask_mod)
    problems = []
    for compute in (eager, whole):
        try:
            out, lse = compute()
            return [out, lse, *torch.autograd.grad((out * weights).sum(), [*inputs, *captured])]
        except Exception as problem:
            problems.append(f"{type(problem).__name__} {(str(problem).splitlines() or [''])[0]}".strip())
    raise NoReference("; ".join(problems))


def both(q_len, kv_len, score_mod, captured, ours, theirs):
    """Raises where flexc's numbers are not PyTorch's."""
    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, 4, n, 16, generator=random).requires_grad_() for n in (q_len, kv_len, kv_len)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    out, lse = flex_attention(*inputs, score_mod, ours, return_lse=True)
    weights = torch.randn(out.shape, generator=random)
    actual = [out, lse, *torch.autograd.grad((out * weights).sum(), [*inputs, *captured])]
    wanted = reference(doubles, captured, weights, score_mod, theirs)
    for name, a, b in zip(("out", "lse", "dq", "dk", "dv", *("d_captured",) * len(captured)), actual, wanted):
        a, b = a.detach().double(), b.detach().double()
        if not torch.equal(a.isinf(), b.isinf()):
            raise AssertionError(f"{name}: other elements are infinite")
        a, b = a.masked_fill(a.isinf(), 0), b.masked_fill(b.isinf(), 0)
        error, size = (a - b).abs().max().item(), max(1.0, b.abs().max().item())
        if not error <= TOLERANCE * size:
            raise AssertionError(f"{name}: differs by {error:.2g} of {size:.2g}")


def alibi(score, b, h, q_idx, kv_idx):
    return score + torch.exp2(-(h + 1) * 2.0) * (kv_idx - q_idx)


def mask_case(q_len, kv_len, make, make_same=None):
    made, same = make(), make_same and make_same()
    theirs = pytorch.create_block_mask(same or made, 2, 4, q_len, kv_len, device="cpu")
    if same:
        both(q_len, kv_len, None, [], made, theirs)
        both(q_len, kv_len, alibi, [], made, theirs)
    else:
        both(q_len, kv_len, None, [], create_block_mask(made, None, None, q_len, kv_len), theirs)
        both(q_len, kv_len, None, [], theirs, theirs)
        both(q_len, kv_len, alibi, [], theirs, theirs)


def score_case(q_len, kv_len, make):
    score_mod, captured = make()
    both(q_len, kv_len, score_mod, captured, None, None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="a checkout of attention-gym")
    parser.add_argument("--only", default="", help="run the functions whose names contain this")
    options = parser.parse_args()
    if not (options.folder / "attn_gym").is_dir():
        parser.error(f"{options.folder} has no attn_gym")
    warnings.simplefilter("ignore")
    # Newer PyTorch refuses gradients on the CPU, which its eager computes.
    pytorch._validate_device = lambda *_: None
    # Without the packages' __init__: they import kernels for GPUs.
    for name in ("attn_gym", "attn_gym.masks", "attn_gym.mods"):
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(options.folder / name.replace(".", "/"))]
    sys.modules["attn_gym.masks"].causal_mask = causal()
    counts = {"passed": 0, "failed": 0, "not applicable": 0}
    lines = []
    for kind, cases, case in (("score_mod", SCORES, score_case), ("mask_mod", MASKS, mask_case)):
        for name, arguments in cases.items():
            if options.only not in name:
                continue
            torch.manual_seed(0)
            torch._dynamo.reset()
            try:
                case(*arguments)
                word, why = "passed", ""
            except ImportError as problem:
                word, why = "not applicable", f"it needs a newer PyTorch: {problem}"
            except NoReference as problem:
                word, why = "not applicable", f"PyTorch cannot compute it: {problem}"
            except Exception as problem:
                traceback.print_exc()
                word, why = "failed", repr(problem).splitlines()[0]
            counts[word] += 1
            print(f"{kind} {name}: {word} {why}", file=sys.stderr, flush=True)
            if word != "passed":
                lines.append(f"| {kind} {name} | {word}: {why} |")
    print(f"PyTorch {torch.__version__}, flexc {flexc.__version__}, Python {platform.python_version()}\n")
    print("| passed | failed | not applicable |\n|---|---|---|")
    print("| " + " | ".join(map(str, counts.values())) + " |")
    if lines:
        print("\n| function | |\n|---|---|\n" + "\n".join(lines))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
