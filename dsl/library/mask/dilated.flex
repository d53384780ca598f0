# Every step-th key at most reach positions away, on both sides.
param reach: i32 = 1024
param step: i32 = 2

fn dilated(reach, step) {
  distance = abs(q_idx - kv_idx)
  distance <= reach and distance % step == 0
}

mask_mod = dilated(reach, step)
