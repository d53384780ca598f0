# Images and videos: tokens on a grid, in rows unless said otherwise.

## neighborhood_2d: An image of width x height tokens: each sees the kernel x kernel patch around it, moved inward at the borders.
# Also called natten, na2d, neighborhood attention.
# Example: width=8 height=4 kernel=3
param width: i32 = 64
param height: i32 = 64
param kernel: i32 = 13

fn neighborhood_2d(width, height, kernel) {
  radius = kernel // 2
  column = clamp(q_idx % width, radius, width - 1 - radius)
  row = clamp(q_idx // width, radius, height - 1 - radius)
  abs(column - kv_idx % width) <= radius and abs(row - kv_idx // width) <= radius
}

mask_mod = neighborhood_2d(width, height, kernel)

## neighborhood_2d_tiled: The kernel x kernel patch for tokens that lie tile by tile, each of tile x tile: fewer blocks are touched.
# Also called tiled_natten.
# Example: width=8 height=4 tile=4 kernel=3
param width: i32 = 64
param height: i32 = 64
param tile: i32 = 8
param kernel: i32 = 13

fn column_in_tiles(i, width, tile) = i // tile ** 2 % (width // tile) * tile + i % tile
fn row_in_tiles(i, width, tile) = i // (width * tile) * tile + i % tile ** 2 // tile

fn neighborhood_2d_tiled(width, height, tile, kernel) {
  radius = kernel // 2
  column = clamp(column_in_tiles(q_idx, width, tile), radius, width - 1 - radius)
  row = clamp(row_in_tiles(q_idx, width, tile), radius, height - 1 - radius)
  across = abs(column - column_in_tiles(kv_idx, width, tile))
  across <= radius and abs(row - row_in_tiles(kv_idx, width, tile)) <= radius
}

mask_mod = neighborhood_2d_tiled(width, height, tile, kernel)

## neighborhood_2d_morton: The kernel x kernel patch for tokens in Morton order: even bits are the column, odd bits the row.
# Also called morton_natten.
# For grids of up to 256 x 256 tokens, both sides powers of two.
# Example: width=8 height=4 kernel=3
param width: i32 = 64
param height: i32 = 64
param kernel: i32 = 13

fn even_bits(i) {
  i = i & 0x5555
  i = (i | i >> 1) & 0x3333
  i = (i | i >> 2) & 0x0f0f
  (i | i >> 4) & 0x00ff
}

fn neighborhood_2d_morton(width, height, kernel) {
  radius = kernel // 2
  column = clamp(even_bits(q_idx), radius, width - 1 - radius)
  row = clamp(even_bits(q_idx >> 1), radius, height - 1 - radius)
  abs(column - even_bits(kv_idx)) <= radius and abs(row - even_bits(kv_idx >> 1)) <= radius
}

mask_mod = neighborhood_2d_morton(width, height, kernel)

## square_2d: The square of tokens at most `reach` away in both directions, cut off at the borders.
# Example: width=8 reach=1
param width: i32 = 64
param reach: i32 = 6

fn square_2d(width, reach) {
  across = abs(q_idx % width - kv_idx % width)
  across <= reach and abs(q_idx // width - kv_idx // width) <= reach
}

mask_mod = square_2d(width, reach)

## sliding_tile_2d: Tiles of tile x tile tokens see the kernel x kernel tiles around them, moved inward at the borders.
# Also called sta, generate_sta_mask_mod_2d.
# Tokens lie tile by tile; columns and rows are counted in tiles.
# Example: tile=2 columns=4 rows=2 kernel=1
param tile: i32 = 8
param columns: i32 = 8
param rows: i32 = 8
param kernel: i32 = 3

fn sliding_tile_2d(tile, columns, rows, kernel) {
  radius = kernel // 2
  q_tile = q_idx // tile ** 2
  kv_tile = kv_idx // tile ** 2
  column = clamp(q_tile % columns, radius, columns - 1 - radius)
  row = clamp(q_tile // columns, radius, rows - 1 - radius)
  abs(column - kv_tile % columns) <= radius and abs(row - kv_tile // columns) <= radius
}

mask_mod = sliding_tile_2d(tile, columns, rows, kernel)

## sliding_tile_3d: Tiles of a video see the tiles around them. Text stands behind: it sees all, and all see its first `text` tokens.
# Also called sta_3d, generate_sta_mask_mod_3d.
# A tile has `volume` tokens; columns, rows and frames are counted in tiles.
# Example: volume=2 columns=3 rows=2 frames=2 kernel=1 text=5
param volume: i32 = 384
param columns: i32 = 8
param rows: i32 = 6
param frames: i32 = 5
param kernel: i32 = 3
param text: i32 = 0

fn near_in_tiles(q, kv, count, radius) = abs(clamp(q, radius, count - 1 - radius) - kv) <= radius

fn sliding_tile_3d(volume, columns, rows, frames, kernel, text) {
  radius = kernel // 2
  q_tile = q_idx // volume
  kv_tile = kv_idx // volume
  plane = columns * rows
  pixels = plane * frames * volume
  near = near_in_tiles(q_tile % columns, kv_tile % columns, columns, radius)
  near = near and near_in_tiles(q_tile % plane // columns, kv_tile % plane // columns, rows, radius)
  near = near and near_in_tiles(q_tile // plane, kv_tile // plane, frames, radius)
  kv_idx < pixels + text and (near and kv_idx < pixels or q_idx >= pixels or kv_idx >= pixels)
}

mask_mod = sliding_tile_3d(volume, columns, rows, frames, kernel, text)

## spatial_head: Videos after `prompt` tokens, frame by frame: frames near by, and the prompt to and from all.
# Example: prompt=4 reach=9
param prompt: i32 = 0
param reach: i32 = 4096

fn spatial_head(prompt, reach) = kv_idx < prompt or q_idx < prompt or abs(q_idx - kv_idx) < reach

mask_mod = spatial_head(prompt, reach)

## temporal_head: The same place in all frames of `frame` tokens, and what lies at most `reach` beside it.
# Example: prompt=4 frame=7 reach=2
param prompt: i32 = 0
param frame: i32 = 1560
param reach: i32 = 156

fn temporal_head(prompt, frame, reach) {
  across = abs((q_idx - prompt) % frame - (kv_idx - prompt) % frame)
  kv_idx < prompt or q_idx < prompt or across < reach
}

mask_mod = temporal_head(prompt, frame, reach)
