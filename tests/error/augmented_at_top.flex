score += 3
