"""PyTorch's FlexAttention on flexc: change one import.

    from flexc.torch import create_block_mask, flex_attention
"""
from .flex import AuxOutput, AuxRequest, flex_attention
from .block_mask import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks
from .op import attention
from .ranks import attention_on_ranks
from .varlen import flex_attention_varlen

__all__ = ["AuxOutput", "AuxRequest", "BlockMask", "and_masks", "attention", "attention_on_ranks",
           "create_block_mask", "create_mask", "flex_attention", "flex_attention_varlen", "noop_mask", "or_masks"]
