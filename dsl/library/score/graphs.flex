# Graphs and points: tokens that are nodes, with distances and paths between them.

## graph_distance: Adds a learned number for each head and distance in the graph: Graphormer's spatial bias.
# Example: N=6 distance=index:6 bias=normal:1
buffer bias: f32[H, N] grad
buffer distance: i32[B, Q_LEN, KV_LEN]

fn graph_distance(score, bias, distance) = score + bias[h, distance[b, q_idx, kv_idx]]

score_mod = graph_distance(score, bias, distance)

## graph_edges: Adds the mean of learned numbers along the path between two nodes: Graphormer's edge bias.
# Paths have at most three steps here; steps[b, q, kv] says how many are there.
# Example: EDGES=5 steps=index:4 edge=index:5 table=normal:1
buffer table: f32[H, 3, EDGES] grad
buffer steps: i32[B, Q_LEN, KV_LEN]
buffer edge: i32[B, Q_LEN, KV_LEN, 3]

fn edge_bias(table, steps, edge, n) =
  table[h, n, edge[b, q_idx, kv_idx, n]] if steps[b, q_idx, kv_idx] > n else 0.0
fn graph_edges(score, table, steps, edge) {
  score + sum(n in 0..3: edge_bias(table, steps, edge, n)) / max(steps[b, q_idx, kv_idx], 1)
}

score_mod = graph_edges(score, table, steps, edge)

## graphormer: The distance in the graph and the edges of the path together.
# Example: N=6 EDGES=5 distance=index:6 steps=index:4 edge=index:5 bias=normal:1 table=normal:1
buffer bias: f32[H, N] grad
buffer table: f32[H, 3, EDGES] grad
buffer distance: i32[B, Q_LEN, KV_LEN]
buffer steps: i32[B, Q_LEN, KV_LEN]
buffer edge: i32[B, Q_LEN, KV_LEN, 3]

fn graphormer(score, bias, table, distance, steps, edge) =
  graph_edges(graph_distance(score, bias, distance), table, steps, edge)

score_mod = graphormer(score, bias, table, distance, steps, edge)

## point_distance: Scores fade with the distance of two points in space: point[i] is where token i is.
# Example: points=normal:1 scale=const:1
buffer points: f32[KV_LEN, 3]
buffer scale: f32[H]

fn point_distance(score, points, scale) {
  square = sum(i in 0..3: (points[q_idx, i] - points[kv_idx, i]) ** 2)
  score * exp(-sqrt(square) / scale[h])
}

score_mod = point_distance(score, points, scale)

## embedding_distance: Subtracts the Euclidean distance of two learned points, in as many dimensions as they have.
# Example: R=5 points=normal:1
buffer points: f32[KV_LEN, R] grad

fn embedding_distance(score, points, dimensions) {
  square = sum(i in 0..dimensions: (points[q_idx, i] - points[kv_idx, i]) ** 2)
  score - sqrt(square + 1e-6)
}

score_mod = embedding_distance(score, points, R)
