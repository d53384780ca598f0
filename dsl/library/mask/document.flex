# Tokens see only their own document: doc holds a number for every position.
buffer doc: i32[KV_LEN]

fn document(doc) = doc[q_idx] == doc[kv_idx]

mask_mod = document(doc)
