"""Block masks: what PyTorch's programs make of a mask_mod, and what flexc reads of them."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Tuple, Union

import torch

from ..errors import InvalidOption


Mod = Callable[..., Any]


def noop_mask(batch: torch.Tensor, head: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> Any:
    """Everything is visible."""
    return q_idx.new_ones((), dtype=torch.bool) if isinstance(q_idx, torch.Tensor) else True


def _checked(mods):
    if not all(callable(mod) for mod in mods):
        raise RuntimeError(f"all arguments should be mask_mods, which are callable, not {mods}")
    return mods


def and_masks(*mask_mods: Mod) -> Mod:
    """What all of them show."""
    mods = _checked(mask_mods)

    def and_mask(b, h, q_idx, kv_idx):
        result = b.new_ones((), dtype=torch.bool)
        for mod in mods:
            result = result & mod(b, h, q_idx, kv_idx)
        return result
    return and_mask


def or_masks(*mask_mods: Mod) -> Mod:
    """What any of them shows."""
    mods = _checked(mask_mods)

    def or_mask(b, h, q_idx, kv_idx):
        result = b.new_zeros((), dtype=torch.bool)
        for mod in mods:
            result = result | mod(b, h, q_idx, kv_idx)
        return result
    return or_mask


def _theirs():
    """PyTorch's module, which takes seconds to import: only where something of it is asked for."""
    from torch.nn.attention import flex_attention
    return flex_attention


def _device(device):
    return torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))


# What PyTorch's BlockMask has of its lists of blocks.
_OF_BLOCKS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices", "q_num_blocks", "q_indices",
              "full_q_num_blocks", "full_q_indices", "as_tuple", "to_string", "to_dense", "sparsity")


class BlockMask:
    """A mask_mod and the lengths that it is for. flexc finds the tiles itself: nothing is evaluated to make one.

    What asks for the lists of blocks, or for some of them by an index, is given PyTorch's, which are made then.
    """

    def __init__(self, mask_mod: Mod, shape: Tuple[int, int, int, int], device: torch.device,
                 block_size: Tuple[int, int]):
        self.mask_mod, self.shape, self.device, self.BLOCK_SIZE = mask_mod, shape, device, block_size
        self.seq_lengths = shape[-2:]

    @staticmethod
    def from_kv_blocks(*arguments: Any, **options: Any) -> Any:
        """PyTorch's BlockMask of such lists."""
        return _theirs().BlockMask.from_kv_blocks(*arguments, **options)

    def of_pytorch(self) -> Any:
        """PyTorch's BlockMask of the same mask, for which the mask_mod is evaluated once."""
        if "_of_pytorch" not in self.__dict__:
            self._of_pytorch = _theirs().create_block_mask(self.mask_mod, *self.shape, device=self.device,
                                                           BLOCK_SIZE=self.BLOCK_SIZE)
        return self._of_pytorch

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_BLOCKS:
            raise AttributeError(f"a BlockMask has no {name!r}")
        return getattr(self.of_pytorch(), name)

    def __getitem__(self, index: Any) -> Any:
        return self.of_pytorch()[index]

    def numel(self) -> int:
        return math.prod(self.shape)

    def to(self, device: Union[str, torch.device]) -> BlockMask:
        return BlockMask(self.mask_mod, self.shape, torch.device(device), self.BLOCK_SIZE)

    def __repr__(self):
        return f"BlockMask(shape={self.shape}, mask_mod={getattr(self.mask_mod, '__name__', self.mask_mod)})"


def create_block_mask(mask_mod: Mod, B: Optional[int], H: Optional[int], Q_LEN: int, KV_LEN: int,
                      device: Union[str, torch.device, None] = None, BLOCK_SIZE: Union[int, Tuple[int, int]] = 128,
                      _compile: bool = False, **ignored: Any) -> BlockMask:
    """A BlockMask. B, H and BLOCK_SIZE are PyTorch's, and change nothing here but its lists of blocks."""
    if not callable(mask_mod):
        raise InvalidOption("mask_mod is a function of b, h, q_idx and kv_idx")
    size = BLOCK_SIZE if isinstance(BLOCK_SIZE, tuple) else (BLOCK_SIZE, BLOCK_SIZE)
    return BlockMask(mask_mod, (B or 1, H or 1, Q_LEN, KV_LEN), _device(device), size)


def create_mask(mod_fn: Mod, B: Optional[int], H: Optional[int], Q_LEN: int, KV_LEN: int,
                device: Union[str, torch.device, None] = None) -> torch.Tensor:
    """What a mask_mod shows, or a score_mod does not hide, [B, H, Q_LEN, KV_LEN]."""
    return _theirs().create_mask(mod_fn, B, H, Q_LEN, KV_LEN, device=_device(device))


_EVERYTHING = 1 << 30


def mask_of(block_mask, query, key):
    """The mask_mod of a BlockMask of flexc or of PyTorch, once its lengths are checked."""
    if isinstance(block_mask, BlockMask):
        mask_mod = block_mask.mask_mod
    elif hasattr(block_mask, "kv_num_blocks"):
        mask_mod = _of_blocks(block_mask)
    else:
        raise InvalidOption(f"block_mask is a BlockMask, not {type(block_mask).__name__}")
    if block_mask.BLOCK_SIZE == (_EVERYTHING, _EVERYTHING):
        return block_mask.mask_mod  # what PyTorch puts for no mask: of any lengths
    lengths = query.shape[2], key.shape[2]
    if hasattr(block_mask, "seq_lengths"):
        made = block_mask.seq_lengths
    else:  # PyTorch 2.5 knows whole blocks only
        made = block_mask.shape[-2:]
        lengths = tuple(-(-length // size) * size for length, size in zip(lengths, block_mask.BLOCK_SIZE))
    if tuple(made) != lengths:
        raise ValueError(f"block_mask is for {made[0]} queries and {made[1]} keys, not {lengths[0]} and {lengths[1]}: "
                         "make one for these lengths")
    for name, made, given in zip(("batch", "head"), block_mask.shape, query.shape):
        if made not in (1, given):
            raise ValueError(f"block_mask has {name} size {made}, which does not go with {given}")
    return mask_mod


def _of_blocks(block_mask):
    """PyTorch's lists of blocks may say more than its mask_mod does: kept with it, as a table of 0, 1 and 2."""
    is_compiling = torch.compiler.is_compiling()
    made = None if is_compiling else getattr(block_mask, "_flexc_mask_mod", None)
    if made is not None:
        return made
    partial = _table(block_mask.kv_num_blocks, block_mask.kv_indices)
    table = partial.to(torch.uint8)
    if block_mask.full_kv_num_blocks is not None:
        table = torch.where(_table(block_mask.full_kv_num_blocks, block_mask.full_kv_indices), 2, table).to(torch.uint8)
    rows, columns = block_mask.BLOCK_SIZE
    mask_mod = block_mask.mask_mod
    batch, heads = table.shape[:2]

    def of_blocks(b, h, q_idx, kv_idx):
        block = table[b if batch > 1 else b * 0, h if heads > 1 else h * 0, q_idx // rows, kv_idx // columns]
        return (block == 2) | ((block == 1) & mask_mod(b, h, q_idx, kv_idx))
    if is_compiling:
        return of_blocks  # in a graph the table is the graph's own
    of_blocks._flexc_constants = True
    try:
        block_mask._flexc_mask_mod = of_blocks
    except AttributeError:
        pass
    return of_blocks


def _table(counts, indices):
    columns = indices.shape[-1]
    # A negative index is a page that nothing was assigned to.
    listed = (torch.arange(columns, device=counts.device) < counts[..., None]) & (indices >= 0)
    dense = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.bool, device=counts.device)
    places = torch.where(listed, indices, columns).long()
    return dense.scatter(-1, places, True)[..., :columns]
