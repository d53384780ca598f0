# Block diagonals: packed queries and packed keys, each block by itself. The classes of xformers.
# q_block and kv_block number the block of each query and key. q_start and kv_start say where blocks
# start, with the end of the last one behind them.

## block_diagonal: Queries see the keys of their own block.
# xformers: BlockDiagonalMask.
# Ragged queries and keys (query_layout, key_layout) are such blocks without a mask, and need no buffers.
# Example: q_block=segments:12 kv_block=segments:10
buffer q_block: i32[Q_LEN]
buffer kv_block: i32[KV_LEN]

fn block_diagonal(q_block, kv_block) = q_block[q_idx] == kv_block[kv_idx]

mask_mod = block_diagonal(q_block, kv_block)

## block_diagonal_causal: Causal within each block, its first query at its first key.
# xformers: BlockDiagonalCausalMask.
# Example: ENDS=4 q_block=segments:12 kv_block=segments:10 q_start=list:0:12:24:32 kv_start=list:0:10:20:32
buffer q_block: i32[Q_LEN]
buffer kv_block: i32[KV_LEN]
buffer q_start: i32[ENDS]
buffer kv_start: i32[ENDS]

fn block_diagonal_causal(q_block, kv_block, q_start, kv_start) {
  n = q_block[q_idx]
  block_diagonal(q_block, kv_block) and kv_idx - kv_start[n] <= q_idx - q_start[n]
}

mask_mod = block_diagonal_causal(q_block, kv_block, q_start, kv_start)

## block_diagonal_causal_bottom_right: Causal within each block, its last query at its last key.
# xformers: BlockDiagonalCausalFromBottomRightMask.
# Example: Q_LEN=24 ENDS=4 q_block=segments:8 kv_block=segments:11 q_start=list:0:8:16:24 kv_start=list:0:11:22:32
buffer q_block: i32[Q_LEN]
buffer kv_block: i32[KV_LEN]
buffer q_start: i32[ENDS]
buffer kv_start: i32[ENDS]

fn block_diagonal_causal_bottom_right(q_block, kv_block, q_start, kv_start) {
  n = q_block[q_idx]
  block_diagonal(q_block, kv_block) and kv_start[n + 1] - kv_idx >= q_start[n + 1] - q_idx
}

mask_mod = block_diagonal_causal_bottom_right(q_block, kv_block, q_start, kv_start)

## block_diagonal_window: The `window` keys that end at the query's own, counted from the start of its block.
# xformers: BlockDiagonalCausalLocalAttentionMask.
# Example: ENDS=3 window=5 q_block=segments:16 kv_block=segments:16 q_start=list:0:16:32 kv_start=list:0:16:32
buffer q_block: i32[Q_LEN]
buffer kv_block: i32[KV_LEN]
buffer q_start: i32[ENDS]
buffer kv_start: i32[ENDS]
param window: i32 = 1024

fn block_diagonal_window(q_block, kv_block, q_start, kv_start, window) {
  n = q_block[q_idx]
  distance = (q_idx - q_start[n]) - (kv_idx - kv_start[n])
  block_diagonal(q_block, kv_block) and 0 <= distance < window
}

mask_mod = block_diagonal_window(q_block, kv_block, q_start, kv_start, window)

## block_diagonal_window_bottom_right: The `window` keys that end at the query's own, counted from the end of its block.
# xformers: BlockDiagonalCausalLocalAttentionFromBottomRightMask.
# Example: Q_LEN=24 ENDS=4 window=5 q_block=segments:8 kv_block=segments:11 q_start=list:0:8:16:24 kv_start=list:0:11:22:32
buffer q_block: i32[Q_LEN]
buffer kv_block: i32[KV_LEN]
buffer q_start: i32[ENDS]
buffer kv_start: i32[ENDS]
param window: i32 = 1024

fn block_diagonal_window_bottom_right(q_block, kv_block, q_start, kv_start, window) {
  n = q_block[q_idx]
  distance = (kv_start[n + 1] - kv_idx) - (q_start[n + 1] - q_idx)
  block_diagonal(q_block, kv_block) and 0 <= distance < window
}

mask_mod = block_diagonal_window_bottom_right(q_block, kv_block, q_start, kv_start, window)
