score * 2
score * 3
