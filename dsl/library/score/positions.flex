# Positions: scores that know how far apart two tokens are, with nothing learned but a number for each head.

## alibi: A penalty that grows with distance, with a learned slope for each head.
# Example: slopes=const:0.3
buffer slopes: f32[H] grad

fn alibi(score, slopes) = score + slopes[h] * (kv_idx - q_idx)

score_mod = alibi(score, slopes)

## alibi_fixed: A penalty that grows with distance, with the slopes of the ALiBi paper: halved from head to head where there are eight.
# Also called alibi_bias, alibi_mod.
# Example: H=8
fn alibi_fixed(score) = score + (kv_idx - q_idx) * exp2(-8 * (h + 1) / H)

score_mod = alibi_fixed(score)

## relative_position: Adds the signed distance from key to query.
# Also called relative_positional.
fn relative_position(score) = score + (q_idx - kv_idx)

score_mod = relative_position(score)

## relative_position_offset: Adds the signed distance for queries that stand `offset` positions further down, as when decoding.
# Example: offset=3
param offset: i32 = 0

fn relative_position_offset(score, offset) = score + (q_idx + offset - kv_idx)

score_mod = relative_position_offset(score, offset)

## distance_decay: Scores fade with the square of the distance.
# Example: rate=0.01
param rate: f32 = 1e-4

fn distance_decay(score, rate) = score / (1 + rate * (q_idx - kv_idx) ** 2)

score_mod = distance_decay(score, rate)

## sandwich: A bias for each distance, scaled by head: relative[offset] is the distance 0.
# Example: N=64 offset=32 head_scale=const:1 relative=uniform:-1:1
buffer relative: f32[N]
buffer head_scale: f32[H]
param offset: i32 = 2048

fn sandwich(score, relative, head_scale, offset) =
  score + relative[q_idx - kv_idx + offset] * head_scale[h]

score_mod = sandwich(score, relative, head_scale, offset)

## alibi_2d: A penalty that grows with the distance of two tokens on a grid of `width` columns.
# Example: width=8 slopes=const:0.5
buffer slopes: f32[H] grad
param width: i32 = 64

fn alibi_2d(score, slopes, width) {
  across = q_idx % width - kv_idx % width
  down = q_idx // width - kv_idx // width
  score - slopes[h] * sqrt(across ** 2 + down ** 2)
}

score_mod = alibi_2d(score, slopes, width)

## paged_alibi: ALiBi over keys that lie in pages: page[b, n] is the place in the sequence of page n, or -1.
# Where the cache itself is in pages, alibi with paged keys (key_layout) reads them through the page table.
# Example: PAGES=4 size=8 page=list:2:0:-1:1 slopes=const:0.3
buffer slopes: f32[H] grad
buffer page: i32[B, PAGES]
param size: i32 = 128

fn paged_alibi(score, slopes, page, size) {
  logical = page[b, kv_idx // size]
  place = logical * size + kv_idx % size
  where(logical >= 0, score + slopes[h] * (place - q_idx), -inf)
}

score_mod = paged_alibi(score, slopes, page, size)
