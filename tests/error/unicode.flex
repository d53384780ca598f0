# héllo wörld: an error after wide letters
mask_mod = q_idx ≥ kv_idx and q_idx − kv_idx ≤ 3
