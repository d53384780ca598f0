buffer flags: i32[KV_LEN]
score_mod = where(flags[kv_idx], score, -inf) + (1 if q_idx % 2 else 0)
