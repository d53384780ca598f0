# Slots: packed queries over a cache in which every sequence has its own stretch of keys.
# q_block numbers the sequence of each query, and q_start says where its queries start, with the end of
# the last one behind. Of a slot the first `used` keys are there.

## gappy_keys: Sequence n has the keys from start[n] on, used[n] of them.
# xformers: BlockDiagonalGappyKeysMask.
# Ragged layouts with seqused_k say this without buffers, and visit no other sequence's keys.
# Example: Q_LEN=12 N=3 q_block=segments:4 start=list:1:12:20 used=list:6:8:10
buffer q_block: i32[Q_LEN]
buffer start: i32[N]
buffer used: i32[N]

fn gappy_keys(q_block, start, used) {
  n = q_block[q_idx]
  start[n] <= kv_idx < start[n] + used[n]
}

mask_mod = gappy_keys(q_block, start, used)

## gappy_keys_local: Gappy keys at most `left` back and `right` ahead, the last query at the last key.
# xformers: BlockDiagonalLocalAttentionFromBottomRightGappyKeysMask.
# In ragged layouts with seqused_k, whose queries end with the keys (query_start), this is local_window alone.
# Example: Q_LEN=12 N=3 ENDS=4 left=3 right=1 q_block=segments:4 q_start=list:0:4:8:12 start=list:1:12:20 used=list:6:8:10
buffer q_block: i32[Q_LEN]
buffer q_start: i32[ENDS]
buffer start: i32[N]
buffer used: i32[N]
param left: i32 = 512
param right: i32 = 512

fn gappy_keys_local(q_block, q_start, start, used, left, right) {
  n = q_block[q_idx]
  distance = (start[n] + used[n] - kv_idx) - (q_start[n + 1] - q_idx)
  gappy_keys(q_block, start, used) and -right <= distance <= left
}

mask_mod = gappy_keys_local(q_block, q_start, start, used, left, right)

## gappy_keys_causal: Gappy keys, causal, with the last query at the last key.
# xformers: BlockDiagonalCausalWithOffsetGappyKeysMask.
# In ragged layouts with seqused_k, whose queries end with the keys (query_start), this is causal alone.
# Example: Q_LEN=12 N=3 ENDS=4 q_block=segments:4 q_start=list:0:4:8:12 start=list:1:12:20 used=list:6:8:10
buffer q_block: i32[Q_LEN]
buffer q_start: i32[ENDS]
buffer start: i32[N]
buffer used: i32[N]

fn gappy_keys_causal(q_block, q_start, start, used) =
  gappy_keys_local(q_block, q_start, start, used, KV_LEN, 0)

mask_mod = gappy_keys_causal(q_block, q_start, start, used)

## padded_keys: Slots of `padding` keys each, used[n] of them there.
# xformers: BlockDiagonalPaddedKeysMask.
# Ragged layouts with seqused_k say this without buffers, as they do for gappy_keys.
# Example: Q_LEN=12 N=3 padding=10 q_block=segments:4 used=list:6:9:4
buffer q_block: i32[Q_LEN]
buffer used: i32[N]
param padding: i32 = 4096

fn padded_keys(q_block, used, padding) {
  n = q_block[q_idx]
  kv_idx // padding == n and kv_idx % padding < used[n]
}

mask_mod = padded_keys(q_block, used, padding)

## padded_keys_local: Padded keys at most `left` back and `right` ahead, the last query at the last key.
# xformers: BlockDiagonalLocalAttentionPaddedKeysMask.
# In ragged layouts with seqused_k, whose queries end with the keys (query_start), this is local_window alone.
# Example: Q_LEN=12 N=3 ENDS=4 padding=10 left=3 right=1 q_block=segments:4 q_start=list:0:4:8:12 used=list:6:9:4
buffer q_block: i32[Q_LEN]
buffer q_start: i32[ENDS]
buffer used: i32[N]
param padding: i32 = 4096
param left: i32 = 512
param right: i32 = 512

fn padded_keys_local(q_block, q_start, used, padding, left, right) {
  n = q_block[q_idx]
  distance = (used[n] - kv_idx % padding) - (q_start[n + 1] - q_idx)
  padded_keys(q_block, used, padding) and -right <= distance <= left
}

mask_mod = padded_keys_local(q_block, q_start, used, padding, left, right)

## padded_keys_causal: Padded keys, causal, with the last query at the last key.
# xformers: BlockDiagonalCausalWithOffsetPaddedKeysMask.
# In ragged layouts with seqused_k, whose queries end with the keys (query_start), this is causal alone.
# Example: Q_LEN=12 N=3 ENDS=4 padding=10 q_block=segments:4 q_start=list:0:4:8:12 used=list:6:9:4
buffer q_block: i32[Q_LEN]
buffer q_start: i32[ENDS]
buffer used: i32[N]
param padding: i32 = 4096

fn padded_keys_causal(q_block, q_start, used, padding) =
  padded_keys_local(q_block, q_start, used, padding, KV_LEN, 0)

mask_mod = padded_keys_causal(q_block, q_start, used, padding)

## padded_keys_window: Padded keys, the `window` ones that end at the query's own.
# xformers: BlockDiagonalCausalLocalAttentionPaddedKeysMask.
# In ragged layouts with seqused_k, whose queries end with the keys (query_start), this is sliding_window(window - 1) alone.
# Example: Q_LEN=12 N=3 ENDS=4 padding=10 window=4 q_block=segments:4 q_start=list:0:4:8:12 used=list:6:9:4
buffer q_block: i32[Q_LEN]
buffer q_start: i32[ENDS]
buffer used: i32[N]
param padding: i32 = 4096
param window: i32 = 1024

fn padded_keys_window(q_block, q_start, used, padding, window) =
  padded_keys_local(q_block, q_start, used, padding, window - 1, 0)

mask_mod = padded_keys_window(q_block, q_start, used, padding, window)
