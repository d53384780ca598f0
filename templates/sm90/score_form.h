// What is known of a program's scores when a kernel is compiled. Included by device and host code.
#pragma once

namespace sm90 {

// A score taken apart: multiplier * score and the addends, or cap * tanh of that. Functions of
// mod.cuh have the values.
struct ScoreForm {
    bool is_affine = false; // it could be taken apart; else mod::score() is all there is
    // Of queries and keys, with their kinds or what keys add: nothing else is added but for rows.
    bool is_product = false;
    bool is_capped = false;
    bool multiplier_is_one = false; // and known to be one
    // Products of a row have a factor that may be any number; those of a head may have the same.
    bool has_factor = false, factor_is_of_head = false;
    // Addends, by what they change with; see mod.cuh.
    bool has_row_addend = false, has_remainder_addend = false, has_element_addend = false;
    bool has_key_addend = false, has_distance_addend = false; // the first that is tabulated
    bool has_slope = false, slope_is_of_head = false;
    bool are_exponents = false; // addends are multiplied by log2(e) already
    bool uses_reads_of_keys = false; // some read's index uses kv
    bool reads_keys = false;         // and elements do that read
    int exponent_bound = 0;     // |score() * log2(e)| is at most this; 0: not known
};

} // namespace sm90
