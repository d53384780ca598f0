score_mod { }
