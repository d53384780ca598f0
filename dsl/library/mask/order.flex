# Order: who comes before whom.

## causal: Each query sees the keys up to its own position.
# Also called causal_mask, lower_triangular, is_causal.
# xformers: LowerTriangularMask.
fn causal() = q_idx >= kv_idx

mask_mod = causal()

## anticausal: Each query sees the keys from its own position on.
fn anticausal() = q_idx <= kv_idx

mask_mod = anticausal()

## causal_offset: Causal for queries that stand `offset` positions further down, as when decoding.
# Also called decoding, offset_mask.
# Example: Q_LEN=8 offset=20
param offset: i32 = 0

fn causal_offset(offset) = q_idx + offset >= kv_idx

mask_mod = causal_offset(offset)

## causal_bottom_right: Causal, with the last query at the last key.
# xformers: LowerTriangularFromBottomRightMask.
# Example: Q_LEN=20
fn causal_bottom_right() = kv_idx <= q_idx + KV_LEN - Q_LEN

mask_mod = causal_bottom_right()

## prefix_lm: The first prefix[b] keys are seen by every query; the rest is causal.
# Example: prefix=const:10
buffer prefix: i32[B]

fn prefix_lm(prefix) = kv_idx < prefix[b] or q_idx >= kv_idx

mask_mod = prefix_lm(prefix)

## prefix_lm_fixed: The first n keys are seen by every query, in every batch entry; the rest is causal.
# Also called prefix_lm_mask, prefixlm.
# Example: prefix=10
param prefix: i32 = 512

fn prefix_lm_fixed(n) = kv_idx < n or q_idx >= kv_idx

mask_mod = prefix_lm_fixed(prefix)
