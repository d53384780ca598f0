score_mod = score + "one" + f"two" + float("three")
