buffer slopes[H]
