# An image of width x height tokens: each sees the kernel x kernel patch around it, moved inward at the borders.
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
