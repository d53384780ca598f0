# Sequences of len[b] tokens, padded to one length: padding neither sees nor is seen.
buffer len: i32[B]

fn padding(len) = q_idx < len[b] and kv_idx < len[b]

mask_mod = padding(len)
