// Which heads, batch entries and keys may add to a captured gradient at the same time.
#include <doctest/doctest.h>

#include <string>

#include "cpu/access.h"
#include "cpu/backend_table.h"
#include "harness.h"

using namespace flexc;
using namespace flexc::test;

namespace {

std::uint32_t separation_of(const std::string& text) {
    const Problem shape{.heads = 4, .kv_heads = 2, .q_len = 8, .kv_len = 8};
    return cpu::separation(mod_of(program_of(text), shape, {}), 0);
}

} // namespace

TEST_CASE("a variable separates when it is the same index of every read") {
    using cpu::kSeparatesB, cpu::kSeparatesHKv, cpu::kSeparatesKv;
    const std::string a = "buffer a: f32[H, N] grad\n";
    CHECK(separation_of(a + "score_mod = score + a[h, q_idx % 2]") == kSeparatesHKv);
    CHECK(separation_of(a + "score_mod = score + a[h_kv, q_idx % 2]") == kSeparatesHKv);
    CHECK(separation_of(a + "score_mod = score + a[h, q_idx % 2] + a[h, kv_idx % 2]") ==
          kSeparatesHKv);
    CHECK(separation_of(a + "score_mod = score + a[h, q_idx % 2] + a[h_kv, kv_idx % 2]") == 0);
    CHECK(separation_of(a + "score_mod = score + a[h, kv_idx] + a[kv_idx, h]") == 0);
    CHECK(separation_of(a + "score_mod = score + a[h, kv_idx] + a[q_idx, kv_idx]") == kSeparatesKv);
    CHECK(separation_of(a + "score_mod = score + a[b, kv_idx] + a[b, kv_idx + 1]") == kSeparatesB);
    CHECK(separation_of(a + "score_mod = score + a[h + 1, kv_idx // 2]") == 0);
    CHECK(separation_of("buffer a: f32[H, H_KV, KV_LEN] grad\n"
                        "score_mod = score + a[h, h_kv, kv_idx] * a[h_kv, h_kv, kv_idx]") ==
          (kSeparatesHKv | kSeparatesKv));
}
