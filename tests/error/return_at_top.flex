return score * 2
