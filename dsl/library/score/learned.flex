# Learned tables: biases that are read by position, head and batch entry, and that get gradients.

## dense_bias: Adds a learned number for every head, query and key.
# Example: bias=normal:1
buffer bias: f32[H, Q_LEN, KV_LEN] grad

fn dense_bias(score, bias) = score + bias[h, q_idx, kv_idx]

score_mod = dense_bias(score, bias)

## full_bias: Adds a number for every batch entry, head, query and key.
# xformers: a tensor as attn_bias.
# Example: bias=normal:1
buffer bias: f32[B, H, Q_LEN, KV_LEN] grad

fn full_bias(score, bias) = score + bias[b, h, q_idx, kv_idx]

score_mod = full_bias(score, bias)

## causal_full_bias: Causal, with a number for every batch entry, head, query and key added.
# xformers: LowerTriangularMaskWithTensorBias.
# Example: bias=normal:1
buffer bias: f32[B, H, Q_LEN, KV_LEN] grad

fn causal_full_bias(score, bias) = where(causal(), full_bias(score, bias), -inf)

score_mod = full_bias(score, bias)
mask_mod = causal()

## pair_bias: Adds a number for every query and key, the same in all heads.
# Example: bias=normal:1
buffer bias: f32[Q_LEN, KV_LEN] grad

fn pair_bias(score, bias) = score + bias[q_idx, kv_idx]

score_mod = pair_bias(score, bias)

## key_bias: Adds a number for every key.
# Example: bias=normal:1
buffer bias: f32[KV_LEN] grad

fn key_bias(score, bias) = score + bias[kv_idx]

score_mod = key_bias(score, bias)

## distance_bias: Adds a number for every distance, whatever its sign.
# Example: N=32 bias=normal:1
buffer bias: f32[N] grad

fn distance_bias(score, bias) = score + bias[abs(q_idx - kv_idx)]

score_mod = distance_bias(score, bias)

## clipped_distance_bias: Adds a number for every signed distance up to `reach`, and one for all beyond on either side.
# The table has 2 * reach + 1 numbers.
# Example: N=17 reach=8 bias=normal:1
buffer bias: f32[N] grad
param reach: i32 = 128

fn clipped_distance_bias(score, bias, reach) =
  score + bias[clamp(q_idx - kv_idx + reach, 0, 2 * reach)]

score_mod = clipped_distance_bias(score, bias, reach)

## row_scale: Scales the scores of every query.
buffer scale: f32[Q_LEN] grad

fn row_scale(score, scale) = score * scale[q_idx]

score_mod = row_scale(score, scale)

## stream_bias: Adds a number for every batch entry, head and query, out of one of several tables.
# Example: STREAMS=2
buffer bias: f32[B, H, STREAMS, Q_LEN] grad
param stream: i32 = 0

fn stream_bias(score, bias, stream) = score + bias[b, h, stream, q_idx]

score_mod = stream_bias(score, bias, stream)

## indexed_bias: Adds bias[place[q_idx]]: a table that is read through another.
# Example: N=8 place=index:8
buffer bias: f32[N] grad
buffer place: i32[Q_LEN]

fn indexed_bias(score, bias, place) = score + bias[place[q_idx]]

score_mod = indexed_bias(score, bias, place)

## symmetric_bias: Adds a number for the query's position and the key's, out of the same table.
# Example: N=32 bias=normal:1
buffer bias: f32[N] grad

fn symmetric_bias(score, bias) = score + bias[q_idx] + bias[kv_idx]

score_mod = symmetric_bias(score, bias)

## t5_bias: Adds a learned number for each head and bucket of distance: near ones by themselves, far ones by their logarithm.
# Also called t5, relative position buckets.
# For decoders: `exact` buckets of one distance each, and the rest up to the distance `far`.
# Example: BUCKETS=32 exact=8 far=32 table=normal:1
buffer table: f32[BUCKETS, H] grad
param exact: i32 = 16
param far: i32 = 128

fn t5_bucket(exact, far, buckets) {
  distance = max(q_idx - kv_idx, 0)
  octave = log(max(distance, 1) / exact) / log(far / exact)
  distance if distance < exact else min(exact + int(octave * (buckets - exact)), buckets - 1)
}
fn t5_bias(score, table, exact, far, buckets) = score + table[t5_bucket(exact, far, buckets), h]

score_mod = t5_bias(score, table, exact, far, BUCKETS)

## gated_relative_bias: Adds a learned number for each head and bucket of signed distance, times a gate of the query: WavLM's.
# Also called wavlm, gated relative position bias.
# Half of the buckets are for each sign: half of those for one distance each, the rest up to the distance `far`.
# Example: BUCKETS=32 far=32 table=normal:1 gate=uniform:0:2
buffer table: f32[BUCKETS, H] grad
buffer gate: f32[B, H, Q_LEN] grad
param far: i32 = 800

fn signed_bucket(far, half, exact) {
  distance = abs(kv_idx - q_idx)
  octave = log(max(distance, 1) / exact) / log(far / exact)
  bucket = distance if distance < exact else min(exact + int(octave * (half - exact)), half - 1)
  bucket + (half if kv_idx > q_idx else 0)
}
fn gated_relative_bias(score, table, gate, far, buckets) =
  score + gate[b, h, q_idx] * table[signed_bucket(far, buckets // 2, buckets // 4), h]

score_mod = gated_relative_bias(score, table, gate, far, BUCKETS)

## decomposed_2d: Adds a number for the key's row and one for its column, for every query: SAM's relative position.
# Also called sam, vitdet.
# Example: width=8 ROWS=4 COLUMNS=8 rel_h=normal:1 rel_w=normal:1
buffer rel_h: f32[B, H, Q_LEN, ROWS] grad
buffer rel_w: f32[B, H, Q_LEN, COLUMNS] grad
param width: i32 = 64

fn decomposed_2d(score, rel_h, rel_w, width) =
  score + rel_h[b, h, q_idx, kv_idx // width] + rel_w[b, h, q_idx, kv_idx % width]

score_mod = decomposed_2d(score, rel_h, rel_w, width)

## swin: Adds a number for every head and distance on a grid of width x width tokens: Swin's relative table.
# Also called window attention.
# The table has 2 * width - 1 rows and columns.
# Example: Q_LEN=25 KV_LEN=25 width=5 DOWN=9 ACROSS=9 table=normal:1
buffer table: f32[H, DOWN, ACROSS] grad
param width: i32 = 7

fn swin(score, table, width) {
  down = q_idx // width - kv_idx // width
  across = q_idx % width - kv_idx % width
  score + table[h, down + width - 1, across + width - 1]
}

score_mod = swin(score, table, width)

## mla_rope: Adds the product of the rotated parts of query and key, which all heads share on the key's side: DeepSeek's latent attention.
# Also called mla, deepseek.
# For R of a few tens; what is wider belongs into q and k, which the matrix units multiply.
# Example: R=6 weight=0.25 q_rope=normal:1 k_rope=normal:1
buffer q_rope: f32[B, H, Q_LEN, R] grad
buffer k_rope: f32[B, KV_LEN, R] grad
param weight: f32 = 0.07216878

fn mla_rope(score, q_rope, k_rope, weight, width) =
  score + weight * sum(i in 0..width: q_rope[b, h, q_idx, i] * k_rope[b, kv_idx, i])

score_mod = mla_rope(score, q_rope, k_rope, weight, R)

## learned_sink: Each head has a learned logit that takes weight and has no value: attention sinks.
# Also called gpt_oss, softmax_off_by_one, head_sink.
# Layers of gpt-oss that see a window have mask_mod = causal() and sliding_window(127). With sink = 0 it is the softmax
# "off by one".
# Example: sinks=normal:1
buffer sinks: f32[H] grad

fn learned_sink(sinks) = sinks[h]

sink = learned_sink(sinks)
mask_mod = causal()
