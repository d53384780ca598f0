#include "d_scores.h"

#include <utility>

#include "draws.h"
#include "host_arguments.h"
#include "support/floats.h"

namespace flexc::test {

ir::Environment environment_of(const AttentionArguments& attention, int head_dim) {
    ir::Environment at;
    at.sizes = {attention.batch,
                attention.heads,
                attention.kv_heads,
                attention.q_len + attention.q_offset,
                attention.kv_len + attention.kv_offset,
                head_dim,
                head_dim};
    return at;
}

TilePlace random_tile(const AttentionArguments& attention, int queries, int keys,
                      std::mt19937& random) {
    const auto below = draws_below(random);
    return {.head = below(attention.batch * attention.heads),
            .first_query = queries * below((attention.q_len - 1) / queries + 1),
            .queries = queries,
            .first_key = keys * below((attention.kv_len - 1) / keys + 1),
            .keys = keys};
}

TileOfDScores tile_of_d_scores(const passes::Mod& mod, const AttentionArguments& attention,
                               ir::Environment at, const TilePlace& place,
                               std::vector<std::vector<double>> empty_gradients,
                               const std::function<double(int row, int column)>& value,
                               const FactorOfRead& factor) {
    TileOfDScores tile{.values = {}, .gradients = std::move(empty_gradients), .terms = {}};
    for (const auto& buffer : tile.gradients)
        tile.terms.emplace_back(buffer.size());
    at.b = place.head / attention.heads;
    at.h = place.head % attention.heads;
    at.h_kv = at.h / (attention.heads / attention.kv_heads);
    for (int row = 0; row < place.queries; ++row)
        for (int column = 0; column < place.keys; ++column) {
            const int q = place.first_query + row, key = place.first_key + column;
            const bool exists = q < attention.q_len && key < attention.kv_len;
            const double element = exists ? value(row, column) : 0;
            tile.values.push_back(support::Bf16::narrow(static_cast<float>(element)));
            if (!exists) continue;
            at.q_idx = q + attention.q_offset;
            at.kv_idx = key + attention.kv_offset;
            for (const passes::ReadGradient& gradient : mod.gradients) {
                const auto place_of_read = element_of(mod.program, gradient.read, at);
                const auto of_read = place_of_read ? factor(gradient, at) : std::nullopt;
                if (!of_read) continue;
                const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
                tile.gradients[buffer][*place_of_read] += element * *of_read;
                ++tile.terms[buffer][*place_of_read];
            }
        }
    return tile;
}

} // namespace flexc::test
