buffer table: f32[BUCKETS, H]
const BUCKETS = 32
param H: i32 = 3
