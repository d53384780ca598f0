buffer slopes: f32[H, Q_LEN]
score_mod = softcap(alibi(score, slopes), 30.0)
