# Shapes: what is done to the score itself.

## softcap: Keeps scores between -cap and cap, smoothly.
# Also called tanh_softcap, soft_cap, logit softcapping, gemma2.
param cap: f32 = 20.0

fn softcap(score, cap) = cap * tanh(score / cap)

score_mod = softcap(score, cap)

## causal_score: Causal, said by the score: -inf hides an element as a mask would.
# mask_mod = causal() is faster, because whole tiles are left out.
fn causal_score(score) = where(q_idx >= kv_idx, score, -inf)

score_mod = causal_score(score)

## checkerboard: Halves the scores of odd distances and doubles the others.
fn checkerboard(score) = score * 0.5 if (kv_idx - q_idx) % 2 == 1 else score * 2

score_mod = checkerboard(score)

## head_offset: Adds a constant times the number of the head.
# Softmax takes it away again, so that only lse shows it.
param step: f32 = 2.0

fn head_offset(score, step) = score + step * h

score_mod = head_offset(score, step)

## head_gate: Scales the scores of each head by a learned gate between 0 and 1.
# Also called gated attention.
buffer gate: f32[H] grad

fn head_gate(score, gate) = score * sigmoid(gate[h])

score_mod = head_gate(score, gate)

## gelu_attention: Weights that are gelu(score) + 1 instead of exp(score).
# out * exp(lse) is their sum with v; softmax only divides it by exp(lse).
fn gelu_attention(score) = log(gelu(score) + 1)

score_mod = gelu_attention(score)
