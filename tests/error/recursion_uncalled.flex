fn again(n) = again(n - 1)
