# Generation: drafts, trees, blocks that are denoised, and streams that look at other streams.

## block_diffusion: Noisy tokens, then the same tokens clean: a noisy block sees itself and the clean ones before it.
# Also called bd3lm.
# Clean blocks are causal among themselves. The sequence is 2 * length tokens long.
# Example: length=16 block=4
param length: i32 = 1024
param block: i32 = 32

fn block_diffusion(length, block) {
  q_noisy = q_idx < length
  kv_noisy = kv_idx < length
  q_block = (q_idx % length) // block
  kv_block = (kv_idx % length) // block
  same = q_block == kv_block and q_noisy == kv_noisy
  to_clean = q_block > kv_block and q_noisy and not kv_noisy
  clean = q_block >= kv_block and not q_noisy and not kv_noisy
  same or to_clean or clean
}

mask_mod = block_diffusion(length, block)

## draft_tree: All of the prefix, and of the drafted tokens those that are the query's ancestors.
# Also called medusa, eagle, tree attention, speculative decoding.
# Outside the table there is nobody's ancestor.
# Example: Q_LEN=7 NODES=7 KV_LEN=17 prefix=10 ancestor=list:1:0:0:0:0:0:0:1:1:0:0:0:0:0:1:0:1:0:0:0:0:1:1:0:1:0:0:0:1:1:0:0:1:0:0:1:0:1:0:0:1:0:1:0:1:0:0:0:1
buffer ancestor: bool[Q_LEN, NODES]
param prefix: i32 = 1024

fn draft_tree(ancestor, prefix) = kv_idx < prefix or ancestor[q_idx, kv_idx - prefix]

mask_mod = draft_tree(ancestor, prefix)

## draft_blocks: All of the prefix, and causal within the query's own drafted block.
# Example: Q_LEN=20 prefix=12 block=5
param prefix: i32 = 1024
param block: i32 = 8

fn draft_blocks(prefix, block) {
  draft = kv_idx - prefix
  draft < 0 or (q_idx // block == draft // block and draft % block <= q_idx % block)
}

mask_mod = draft_blocks(prefix, block)

## causal_with_images: Causal, and the tokens of an image see each other: image holds a number for every position, -1 for text.
# Also called transfusion, bidirectional images.
# Example: image=list:-1:-1:-1:-1:-1:-1:0:0:0:0:0:0:0:0:-1:-1:-1:-1:-1:1:1:1:1:1:1:1:1:-1:-1:-1:-1:-1
buffer image: i32[KV_LEN]

fn causal_with_images(image) = q_idx >= kv_idx or image[q_idx] == image[kv_idx] and image[q_idx] >= 0

mask_mod = causal_with_images(image)

## image_intervals: Text looks at images: image n is seen by the queries from interval[n, 0] until interval[n, 1].
# Also called flamingo, vision_x_attention.
# Example: N=4 image=segments:8 interval=list:0:7:7:15:10:24:24:32
buffer image: i32[KV_LEN]
buffer interval: i32[N, 2]

fn image_intervals(image, interval) {
  n = image[kv_idx]
  interval[n, 0] <= q_idx < interval[n, 1]
}

mask_mod = image_intervals(image, interval)

## block_map: A table says which blocks of keys each block of queries sees.
# Example: ROWS=4 COLUMNS=4 block=8 chosen=list:1:0:0:1:0:1:0:0:1:0:1:0:0:1:1:1
buffer chosen: bool[B, H, ROWS, COLUMNS]
param block: i32 = 64

fn block_map(chosen, block) = chosen[b, h, q_idx // block, kv_idx // block]

mask_mod = block_map(chosen, block)

## chosen_blocks: Each block of queries has a list of the eight blocks of keys that it sees.
# Example: ROWS=4 block=4 top=list:0:1:-1:-1:-1:-1:-1:-1:1:3:5:-1:-1:-1:-1:-1:0:2:4:6:-1:-1:-1:-1:5:6:7:-1:-1:-1:-1:-1 Q_LEN=16
buffer top: i32[B, H, ROWS, 8]
param block: i32 = 64

fn chosen_blocks(top, block) =
  sum(n in 0..8: top[b, h, q_idx // block, n] == kv_idx // block) > 0

mask_mod = chosen_blocks(top, block)

## block_map_ragged: A map of blocks, where of block n of keys only the first used[n] are there.
# Example: ROWS=4 COLUMNS=4 block=8 chosen=list:1:0:0:1:0:1:0:0:1:0:1:0:0:1:1:1 used=list:8:5:8:3
buffer chosen: bool[B, H, ROWS, COLUMNS]
buffer used: i32[COLUMNS]
param block: i32 = 64

fn block_map_ragged(chosen, used, block) =
  block_map(chosen, block) and kv_idx % block < used[kv_idx // block]

mask_mod = block_map_ragged(chosen, used, block)

## paged_causal: Causal over keys that lie in pages: page[b, n] is the place in the sequence of page n, or -1.
# Also called paged attention, vllm, page_table.
# Where the cache itself is in pages, causal with paged keys (key_layout) reads them through the page table.
# Example: PAGES=4 size=8 page=list:2:0:-1:1
buffer page: i32[B, PAGES]
param size: i32 = 128

fn paged_causal(page, size) {
  logical = page[b, kv_idx // size]
  logical >= 0 and q_idx >= logical * size + kv_idx % size
}

mask_mod = paged_causal(page, size)
