mask_mod = true == not false
