# Windows: what a query sees is near it.

## sliding_window: Causal, and at most n positions back.
# Also called sliding_window_mask, swa, mistral.
# Example: window=6
param window: i32 = 1024

fn sliding_window(n) = q_idx >= kv_idx and q_idx - kv_idx <= n

mask_mod = sliding_window(window)

## local_window: At most `left` positions back and `right` positions ahead.
# Example: left=8 right=3
param left: i32 = 512
param right: i32 = 512

fn local_window(left, right) = -right <= q_idx - kv_idx <= left

mask_mod = local_window(left, right)

## local_window_bottom_right: A window to both sides, with the last query at the last key.
# xformers: LocalAttentionFromBottomRightMask.
# Example: Q_LEN=20 left=6 right=2
param left: i32 = 512
param right: i32 = 512

fn local_window_bottom_right(left, right) {
  distance = q_idx + KV_LEN - Q_LEN - kv_idx
  -right <= distance <= left
}

mask_mod = local_window_bottom_right(left, right)

## causal_window_bottom_right: The n keys that end at the query's own, with the last query at the last key.
# xformers: LowerTriangularFromBottomRightLocalAttentionMask.
# Example: Q_LEN=20 window=6
param window: i32 = 1024

fn causal_window_bottom_right(n) = local_window_bottom_right(n - 1, 0)

mask_mod = causal_window_bottom_right(window)

## sink_window: A sliding window, and the first `sinks` keys for everybody.
# Also called attention_sinks, streaming_llm.
# Example: sinks=3 window=6
param sinks: i32 = 4
param window: i32 = 1024

fn sink_window(sinks, n) = (q_idx - kv_idx <= n or kv_idx < sinks) and q_idx >= kv_idx

mask_mod = sink_window(sinks, window)

## dilated: Every step-th key at most reach positions away, on both sides.
# Also called dilated_sliding_window.
# Example: reach=12 step=3
param reach: i32 = 1024
param step: i32 = 2

fn dilated(reach, step) {
  distance = abs(q_idx - kv_idx)
  distance <= reach and distance % step == 0
}

mask_mod = dilated(reach, step)

## global_window: Keys near by, and marked tokens, which see all and are seen by all.
# Also called longformer, global attention.
# Longformer's mask.
# Example: reach=3 marked=list:1:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0
param reach: i32 = 256
buffer marked: bool[KV_LEN]

fn global_window(marked, reach) = abs(q_idx - kv_idx) <= reach or marked[q_idx] or marked[kv_idx]

mask_mod = global_window(marked, reach)
