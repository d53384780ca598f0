# Keeps scores between -cap and cap, smoothly.
param cap: f32 = 20.0

fn softcap(score, cap) = cap * tanh(score / cap)

score_mod = softcap(score, cap)
