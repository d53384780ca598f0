fn a() = score.tanh()
fn c() = score.to(torch.float32)
fn d() = (q_idx - kv_idx).abs().float()
fn e() = score.clamp(0, 1)
fn f() = score.shape[0]
fn g() = np.exp(score)
fn i() = self.slopes[h]
score_mod = score
