// Which value of a score mod all batch entries of a head have in common.
#include <string>

#include <doctest/doctest.h>

#include "passes/shared_value.h"
#include "program_of.h"

namespace {

using namespace flexc;

std::string shared_value_of(const std::string& text) {
    const passes::Mod mod = test::lowered(text);
    const ir::NodeId value = passes::shared_value(mod);
    if (value == ir::kNoNode) return "none";
    const ir::Node& node = mod.program.graph[value];
    return node.op == ir::Op::read ? mod.program.buffers[node.symbol].name
                                   : std::string(ir::info(node.op).name);
}

} // namespace

TEST_CASE("what elements compute from h, q and kv alone is one value, or none") {
    const std::string table = "buffer t: f32[H, N, N]\nbuffer m: f32[B, N, N]\nbuffer c: f32[N]\n";
    const auto of = [&](const std::string& score) {
        return shared_value_of(table + "score_mod = " + score + "\n");
    };
    CHECK(of("score + t[h, q_idx, kv_idx]") == "t");
    CHECK(of("10 * tanh((score + t[h, q_idx // 7, kv_idx % 7]) / 10)") == "t");
    CHECK(of("score + m[b, q_idx, kv_idx]") == "none");
    CHECK(of("score + t[h, q_idx, kv_idx] + c[kv_idx]") == "t");
    CHECK(of("score + t[b, q_idx, kv_idx]") == "none");
    CHECK(of("score * t[h, q_idx, kv_idx] + m[b, q_idx, kv_idx]") == "t");
    CHECK(of("score * t[h, q_idx, kv_idx] + t[0, kv_idx, q_idx]") == "none"); // two
    CHECK(of("score + (q_idx - kv_idx)") == "none");                          // as cheap as a read
    CHECK(of("score") == "none");
}
