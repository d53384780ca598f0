buffer a: f32[0]
buffer c: f32[1.5]
buffer d: f32[2 * H]
buffer e: f32[1,2,3,4,5,6,7,8,9]
