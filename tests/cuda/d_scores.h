// A tile of dS of one head, and what it adds to gradients of buffers, element by element.
#pragma once

#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "common/arguments.h"
#include "draws.h"
#include "ir/interp.h"
#include "passes/mod.h"
#include "sm90/arguments.h"

namespace flexc::test {

// Two batches of four heads that share two of keys, with and without offsets of positions.
inline ::sm90::KernelArguments random_attention(int q_len, int kv_len, std::mt19937& random) {
    const auto below = draws_below(random);
    ::sm90::KernelArguments attention{};
    attention.batch = 2;
    attention.heads = 4;
    attention.kv_heads = 2;
    attention.q_len = q_len;
    attention.kv_len = kv_len;
    attention.scale = 0.5F;
    attention.q_offset = below(2) * below(60);
    attention.kv_offset = below(2) * below(60);
    return attention;
}

// Sizes of a call with q_offset and kv_offset, as the program sees them.
ir::Environment environment_of(const AttentionArguments& attention, int head_dim);

struct TilePlace {
    int head = 0; // batch entries one after the other
    int first_query = 0, queries = 0, first_key = 0, keys = 0;
};
// Some tile of such sizes that is not wholly past the end.
TilePlace random_tile(const AttentionArguments& attention, int queries, int keys,
                      std::mt19937& random);

struct TileOfDScores {
    std::vector<unsigned short> values;         // [queries][keys], bits of bf16
    std::vector<std::vector<double>> gradients; // by buffer, row-major
    std::vector<std::vector<int>> terms;        // elements that each is the sum of
};
// value(row, column): of the tile; what is past the ends is 0. factor(gradient, at): what an
// element is multiplied by, nothing where the read's gradient has none of it. `at` has the place's
// sizes and buffers.
using FactorOfRead =
    std::function<std::optional<double>(const passes::ReadGradient&, const ir::Environment& at)>;
TileOfDScores tile_of_d_scores(const passes::Mod& mod, const AttentionArguments& attention,
                               ir::Environment at, const TilePlace& place,
                               std::vector<std::vector<double>> empty_gradients,
                               const std::function<double(int row, int column)>& value,
                               const FactorOfRead& factor);

} // namespace flexc::test
