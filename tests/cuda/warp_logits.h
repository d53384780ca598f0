// Logits of a warp's rows over one tile of keys, against the score mod of each element.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "draws.h"
#include "ir/interp.h"
#include "passes/mod.h"
#include "random_data.h"

namespace flexc::test {

// The 16 rows of a warp from `row` on, and a tile of keys: products of queries and keys. Those from
// key_step on are the next tile's.
struct WarpProducts {
    int head, row, first_key, key_tile, key_step;
    std::vector<float> values; // [16][key_tile]

    WarpProducts(const ::sm90::KernelArguments& attention, int keys_of_tile, int keys_to_next,
                 std::mt19937& random)
        : key_tile(keys_of_tile), key_step(keys_to_next),
          values(static_cast<std::size_t>(16 * keys_of_tile)) {
        const auto below = draws_below(random);
        head = below(attention.batch * attention.heads);
        row = 16 * below((attention.q_len + 15) / 16);
        first_key = key_step * below((attention.kv_len - 1) / key_step + 1);
        for (float& value : values)
            value = static_cast<float>(random_real(random));
    }

    // Of the logits that these have become, as exponents of two. `at` has sizes and data.
    int count_wrong(const std::vector<float>& logits, const passes::Mod& mod,
                    const ::sm90::KernelArguments& attention, ir::Environment at,
                    double tolerance = 1e-5) const {
        at.b = head / attention.heads;
        at.h = head % attention.heads;
        at.h_kv = at.h / (attention.heads / attention.kv_heads);
        int wrong = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const int q = row + static_cast<int>(i) / key_tile;
            const int kv = first_key + static_cast<int>(i) % key_tile;
            if (q >= attention.q_len || kv >= attention.kv_len) continue;
            at.q_idx = q + attention.q_offset;
            at.kv_idx = kv + attention.kv_offset;
            at.score = values[i] * attention.scale;
            const double expected =
                kv - first_key < key_step && ir::evaluate_boolean(mod.program, mod.mask, at)
                    ? ir::evaluate_real(mod.program, mod.score, at) * 1.4426950408889634
                    : -std::numeric_limits<double>::infinity();
            if (expected == logits[i]) continue;
            if (!(std::abs(expected - logits[i]) <= tolerance * std::max(1.0, std::abs(expected))))
                ++wrong;
        }
        return wrong;
    }
};

} // namespace flexc::test
