# Documents: many texts in one sequence, or one sequence with an end.

## padding: Sequences of len[b] tokens, padded to one length: padding neither sees nor is seen.
# Also called padding_mask, key_padding_mask.
# Example: len=const:22
buffer len: i32[B]

fn padding(len) = q_idx < len[b] and kv_idx < len[b]

mask_mod = padding(len)

## document: Tokens see only their own document: doc holds a number for every position.
# Also called document_mask, doc_mask, document_masking, segment_ids.
# Example: doc=segments:9
buffer doc: i32[KV_LEN]

fn document(doc) = doc[q_idx] == doc[kv_idx]

mask_mod = document(doc)

## document_causal: Causal within each document.
# Example: doc=segments:9
buffer doc: i32[KV_LEN]

fn document_causal(doc) = document(doc) and causal()

mask_mod = document_causal(doc)

## packed_causal: Causal within each document, by where documents start: start[n] for document n.
# Says the same as document_causal with one read less of each key.
# Ragged queries and keys (query_layout, key_layout) need only causal for it, and no buffers.
# Example: N=4 doc=segments:9 start=list:0:9:18:27
buffer doc: i32[Q_LEN]
buffer start: i32[N]

fn packed_causal(doc, start) = kv_idx >= start[doc[q_idx]] and q_idx >= kv_idx

mask_mod = packed_causal(doc, start)

## document_window: A sliding window within each document.
# Positions may be counted from anywhere: only their distance counts.
# Example: doc=segments:12 window=4
buffer doc: i32[KV_LEN]
param window: i32 = 1024

fn document_window(doc, n) = document(doc) and sliding_window(n)

mask_mod = document_window(doc, window)

## document_prefix_lm: In each document the first prefix[doc] keys are seen by all of it; the rest is causal.
# Example: N=4 doc=segments:10 start=list:0:10:20:30 prefix=list:4:2:6:1
buffer doc: i32[KV_LEN]
buffer start: i32[N]
buffer prefix: i32[N]

fn document_prefix_lm(doc, start, prefix) {
  n = doc[q_idx]
  document(doc) and (kv_idx - start[n] < prefix[n] or q_idx >= kv_idx)
}

mask_mod = document_prefix_lm(doc, start, prefix)

## shared_prefix: Causal within a document, which also sees all of its parent: prompts shared by answers.
# start[n] and start[n + 1] bound document n; a document without a parent is its own.
# Example: N=4 ENDS=5 doc=list:0:0:0:0:0:0:0:0:0:0:1:1:1:1:1:1:1:2:2:2:2:2:2:2:3:3:3:3:3:3:3:3 parent=const:0 start=list:0:10:17:24:32
buffer doc: i32[Q_LEN]
buffer parent: i32[N]
buffer start: i32[ENDS]

fn shared_prefix(doc, parent, start) {
  n = doc[q_idx]
  p = parent[n]
  own = kv_idx >= start[n] and q_idx >= kv_idx
  own or (n != p and start[p] <= kv_idx < start[p + 1])
}

mask_mod = shared_prefix(doc, parent, start)

## batched_causal: Sequences of `length` tokens laid end to end, causal in each.
# Also called batchify.
# Example: length=11
param length: i32 = 1024

fn batched_causal(length) {
  same = q_idx // length == kv_idx // length
  same and q_idx % length >= kv_idx % length
}

mask_mod = batched_causal(length)
