fn a(x) = x is true
fn c(x) = x in (1, 2)
fn d(x) = (y := x)
fn e(x) = x not in x
fn f(x) = x @ x
mask_mod = true
