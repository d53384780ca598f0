sink = q_idx > 3
