// What evaluating the mask of a tile finds, and that leaving out tiles that show nothing changes no
// result.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "cpu/backend/tile_range.h"
#include "cpu/emit_llvm.h"
#include "cpu/function_names.h"
#include "cpu/loader.h"
#include "harness.h"
#include "random.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Hidden or visible in blocks of about a tile, some of them mixed, some causal.
class Blocks {
  public:
    explicit Blocks(Random& random)
        : random_(random), rows_(random.integer(20, 140)), columns_(random.integer(40, 300)) {
        for (int& kind : kinds_)
            kind = static_cast<int>(random.integer(0, 5));
    }
    bool shows(std::int64_t q, std::int64_t kv) {
        switch (kinds_[static_cast<std::size_t>(q / rows_ % 8 * 8 + kv / columns_ % 8)]) {
        case 0:
        case 1:
        case 2: return false;
        case 3: return random_.chance(50);
        case 4: return kv <= q;
        default: return true;
        }
    }

  private:
    Random& random_;
    std::int64_t rows_, columns_;
    std::array<int, 64> kinds_;
};

// Buffers whose last dims are queries and keys become masks: bools, or reals of which those that
// hide are -inf.
void fill_masks(const ir::Program& program, Problem& problem, Random& random, bool is_hostile) {
    const std::array odd = {kNan, kInfinity, -3.4e38, 3.4e38, 1e30};
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        ir::BufferData& data = problem.buffers[i];
        const DType dtype = program.buffers[i].dtype;
        if (data.extents.empty()) continue;
        const std::int64_t columns = data.extents.back();
        const std::int64_t rarity = std::min<std::int64_t>(4000, 2 * std::ssize(data.reals));
        const std::int64_t rows = data.extents.size() > 1 ? data.extents.end()[-2] : 1;
        for (std::int64_t map = 0, at = 0; at < std::ssize(data.reals) + std::ssize(data.integers);
             ++map) {
            Blocks blocks(random);
            for (std::int64_t q = 0; q < rows; ++q)
                for (std::int64_t kv = 0; kv < columns; ++kv, ++at) {
                    const auto place = static_cast<std::size_t>(at);
                    if (dtype == DType::boolean || dtype == DType::u8)
                        data.integers[place] = blocks.shows(q, kv) ? 1 : 0;
                    else if (is_float(dtype) && data.extents.size() > 1 && !blocks.shows(q, kv))
                        data.reals[place] = -kInfinity;
                    if (is_hostile && !data.reals.empty() && random.integer(0, rarity) == 0)
                        data.reals[place] = random.pick(odd);
                }
        }
    }
}

void poison(std::vector<double>& values, std::int64_t dim, Random& random) {
    const std::array odd = {kNan, kInfinity, -kInfinity, 1e20, 3e38, 2e6};
    for (std::size_t row = 0; row < values.size(); row += static_cast<std::size_t>(dim))
        if (random.integer(0, 60) == 0)
            values[row + static_cast<std::size_t>(random.integer(0, dim - 1))] = random.pick(odd);
}

const char* const kPrograms[] = {
    "buffer m: bool[Q_LEN, KV_LEN]\nmask_mod = m[q_idx, kv_idx]",
    "buffer m: bool[B, H, Q_LEN, KV_LEN]\nbuffer s: f32[H] grad\nscore_mod = score * s[h]\n"
    "mask_mod = m[b, h, q_idx, kv_idx] and q_idx + 90 >= kv_idx",
    "buffer m: u8[B, Q_LEN, KV_LEN]\nbuffer d: i32[KV_LEN]\nmask_mod = m[b, q_idx, kv_idx] != 0 "
    "or d[q_idx] == d[kv_idx]",
    "mask_mod = abs(q_idx // 16 - kv_idx // 16) <= 3 and abs(q_idx % 16 - kv_idx % 16) <= 5",
    "mask_mod = (q_idx ^ kv_idx) & 256 == 0",
    "buffer x: f32[KV_LEN]\nmask_mod = x[q_idx] * x[kv_idx] > -0.4",
    "buffer a: f32[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + a[b, h, q_idx, kv_idx]",
    "buffer a: f16[Q_LEN, KV_LEN]\nbuffer s: f32[H] grad\n"
    "score_mod = 20.0 * tanh(score / 20.0) + s[h] * a[q_idx, kv_idx]",
    "buffer a: f32[Q_LEN, KV_LEN] grad\nbuffer s: f32[H] grad\n"
    "score_mod = score - s[h] * (q_idx - kv_idx) + a[q_idx, kv_idx]\nmask_mod = q_idx >= kv_idx",
    "buffer m: bool[Q_LEN, KV_LEN]\nbuffer a: f32[H, KV_LEN] grad\n"
    "score_mod = score + a[h, kv_idx] if m[q_idx, kv_idx] else -inf",
    "buffer a: f32[B, KV_LEN] grad\nscore_mod = exp(score) * 0.01 + a[b, kv_idx]",
    "buffer a: bf16[H_KV, N, N]\nbuffer m: bool[N, N]\n"
    "score_mod = score + a[h_kv, q_idx, kv_idx]\nmask_mod = m[q_idx, kv_idx + 3]",
};

} // namespace

TEST_CASE("tiles that are left out change no result, whatever the values") {
    const RunOptions options;
    // Kernels that report reads outside visit every tile.
    const RunOptions slow{.report_out_of_range = true};
    std::uint64_t seed = 0;
    for (const char* text : kPrograms) {
        CAPTURE(text);
        const ir::Program program = program_of(text);
        const Problem dims{.head_dim = 8, .head_dim_v = 5};
        const passes::Mod mod = mod_of(program, dims, options),
                          slow_mod = mod_of(program, dims, slow);
        const auto executable = compile_for(mod, dims, options);
        const auto slow_executable = compile_for(slow_mod, dims, slow);
        for (int repeat = 0; repeat < 6; ++repeat) {
            CAPTURE(++seed);
            Random random(seed);
            const bool is_hostile = repeat % 2 == 1, is_shifted = repeat > 3;
            const MemoryLayout layout =
                repeat > 2 ? MemoryLayout::scattered : MemoryLayout::contiguous;
            Problem problem = make_problem(program,
                                           {.batch = 2,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .q_len = random.integer(1, 210),
                                            .kv_len = random.integer(200, 530),
                                            .head_dim = dims.head_dim,
                                            .head_dim_v = dims.head_dim_v,
                                            .q_offset = is_shifted ? 70 : 0,
                                            .kv_offset = is_shifted ? 33 : 0,
                                            .scale = is_hostile ? 40.0 : 0.5},
                                           seed, {{"N", random.integer(150, 600)}});
            fill_masks(program, problem, random, is_hostile);
            if (is_hostile) {
                poison(problem.q, problem.head_dim, random);
                poison(problem.k, problem.head_dim, random);
                poison(problem.v, problem.head_dim_v, random);
            }
            const RunOptions fast_layout{.layout = layout};
            const RunOptions slow_layout{.layout = layout, .report_out_of_range = true};
            const Outcome expected = run(slow_mod, *slow_executable, problem, slow_layout);
            check_close(run(mod, *executable, problem, fast_layout), expected.answer, options);
        }
    }
}

TEST_CASE("rows that masks and -inf hide, against the oracle") {
    for (const char* text : {kPrograms[1], kPrograms[6], kPrograms[8], kPrograms[9]}) {
        CAPTURE(text);
        Random random(7);
        const ir::Program program = program_of(text);
        Problem problem = make_problem(program,
                                       {.batch = 1,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .q_len = 131,
                                        .kv_len = 389,
                                        .head_dim = 16,
                                        .head_dim_v = 16},
                                       3);
        fill_masks(program, problem, random, false);
        for (ir::BufferData& data : problem.buffers)
            if (data.extents.size() > 1 && data.extents.back() == problem.kv_len)
                for (std::size_t i = 0; i < std::size_t{64} * 389; ++i) {
                    if (i < data.reals.size()) data.reals[i] = -kInfinity;
                    if (i < data.integers.size()) data.integers[i] = 0;
                }
        const Outcome outcome = run(program, problem);
        check_close(outcome, attention_oracle(program, problem), {});
        CHECK(outcome.answer.lse[63] == -kInfinity);
        for (const auto& [name, gradient] : outcome.answer.d_buffers) {
            const auto buffer = static_cast<std::size_t>(
                std::ranges::find(program.buffers, name, &ir::Buffer::name) -
                program.buffers.begin());
            for (std::size_t i = 0; i < gradient.size(); ++i)
                if (problem.buffers[buffer].reals[i] == -kInfinity) REQUIRE(gradient[i] == 0);
        }
    }
}

namespace {

// The emitted mask function of a program that reads one array, [rows, columns], at positions.
class EmittedMask {
  public:
    explicit EmittedMask(const std::string& text) {
        const ir::Program program = program_of(text);
        const passes::Mod mod = mod_of(program, {}, {});
        slots_ = passes::argument_slots(mod);
        const cpu::Emitted emitted = cpu::emit_llvm(mod);
        scratch_.resize(static_cast<std::size_t>(emitted.scratch_arrays + 1) * cpu::kMaxColumns);
        auto found = cpu::backend();
        REQUIRE(found.has_value());
        table_ = (*found)->table;
        module_ = table_->compile(emitted.text.data(), emitted.text.size(), {}, {}, {});
        REQUIRE(module_ != nullptr);
        const auto find = [&](const char* name) {
            return reinterpret_cast<cpu::TileFunction>(table_->find(module_, name));
        };
        mask_ = find(cpu::kMaskFunction);
        intervals_ = find(cpu::kIntervalsFunction);
    }
    ~EmittedMask() { table_->release(module_); }
    EmittedMask(const EmittedMask&) = delete;
    EmittedMask& operator=(const EmittedMask&) = delete;

    bool exists() const { return mask_ != nullptr; }
    bool has_intervals() const { return intervals_ != nullptr; }

    std::int64_t operator()(const void* data, std::int64_t rows, std::int64_t columns,
                            cpu::Tile tile) {
        return seen_by(mask_, data, rows, columns, tile);
    }
    std::int64_t by_intervals(const void* data, std::int64_t rows, std::int64_t columns,
                              cpu::Tile tile) {
        return seen_by(intervals_, data, rows, columns, tile);
    }

  private:
    std::int64_t seen_by(cpu::TileFunction function, const void* data, std::int64_t rows,
                         std::int64_t columns, cpu::Tile tile) {
        using Kind = passes::ArgumentSlot::Kind;
        std::vector<std::uint64_t> words;
        for (const passes::ArgumentSlot& slot : slots_) {
            const bool is_row = slot.dim == 0;
            words.push_back(slot.kind == Kind::buffer_data ? reinterpret_cast<std::uint64_t>(data)
                            : slot.kind == Kind::buffer_extent
                                ? static_cast<std::uint64_t>(is_row ? rows : columns)
                            : slot.kind == Kind::buffer_stride
                                ? static_cast<std::uint64_t>(is_row ? columns : 1)
                                : 0);
        }
        tile.scratch = scratch_.data();
        function(words.data(), &tile);
        return tile.seen;
    }

    std::vector<passes::ArgumentSlot> slots_;
    std::vector<std::uint64_t> scratch_;
    const cpu::BackendTable* table_ = nullptr;
    cpu::BackendModule* module_ = nullptr;
    cpu::TileFunction mask_ = nullptr, intervals_ = nullptr;
};

} // namespace

TEST_CASE("the mask function finds what is shown and what is masked in any part of an array") {
    constexpr std::int64_t kRows = 200, kColumns = 700;
    EmittedMask of_mask("buffer m: bool[Q_LEN, KV_LEN]\nmask_mod = m[q_idx, kv_idx]");
    EmittedMask of_bias("buffer a: f32[Q_LEN, KV_LEN]\nscore_mod = score + a[q_idx, kv_idx]");
    REQUIRE(of_mask.exists());
    REQUIRE(of_bias.exists());
    Random random(11);
    for (int repeat = 0; repeat < 400; ++repeat) {
        // One element is not as all others are.
        const bool rest = random.chance(50);
        const auto odd = static_cast<std::size_t>(random.integer(0, kRows * kColumns - 1));
        std::vector<std::uint8_t> mask(kRows * kColumns, rest ? 1 : 0);
        mask[odd] = rest ? 0 : 1;
        std::vector<float> bias(mask.size());
        std::ranges::transform(mask, bias.begin(), [](std::uint8_t is) {
            return is != 0 ? 0.5f : -std::numeric_limits<float>::infinity();
        });
        cpu::Tile tile{};
        tile.rows = random.integer(1, 64);
        tile.columns = random.integer(1, cpu::kMaskKeyTile);
        tile.q_begin = random.integer(0, kRows - tile.rows);
        tile.kv_begin = random.integer(0, kColumns - tile.columns);
        if (random.chance(50)) { // near the element
            const auto row = static_cast<std::int64_t>(odd) / kColumns;
            const auto column = static_cast<std::int64_t>(odd) % kColumns;
            tile.q_begin = std::clamp<std::int64_t>(row - random.integer(0, tile.rows - 1), 0,
                                                    kRows - tile.rows);
            tile.kv_begin = std::clamp<std::int64_t>(column - random.integer(0, tile.columns - 1),
                                                     0, kColumns - tile.columns);
        }
        std::int64_t expected = 0;
        for (std::int64_t q = tile.q_begin; q < tile.q_begin + tile.rows; ++q)
            for (std::int64_t kv = tile.kv_begin; kv < tile.kv_begin + tile.columns; ++kv)
                expected |= mask[static_cast<std::size_t>(q * kColumns + kv)] != 0
                                ? cpu::kSeenShown
                                : cpu::kSeenMasked;
        CHECK(of_mask(mask.data(), kRows, kColumns, tile) == expected);
        tile.is_moderate = 1;
        CHECK(of_bias(bias.data(), kRows, kColumns, tile) ==
              (cpu::kSeenMasked | (expected & cpu::kSeenShown)));
        // A score of inf or NaN makes NaN of -inf.
        tile.is_moderate = 0;
        CHECK(of_bias(bias.data(), kRows, kColumns, tile) == (cpu::kSeenMasked | cpu::kSeenShown));
    }
}

TEST_CASE("intervals of what queries and keys give hide and show what the mask function does") {
    constexpr std::int64_t kLength = 600;
    for (const std::string mask : {
             "t[q_idx] == t[kv_idx]",
             "t[q_idx] != t[kv_idx] and kv_idx < 300 or t[q_idx] + 1 < t[kv_idx]",
             "abs(t[q_idx] - t[kv_idx]) <= 1",
             "(t[q_idx] * (t[kv_idx] % 4) - t[q_idx]) // 2 >= 1",
             "min(t[q_idx], t[kv_idx]) <= -max(t[q_idx], -t[kv_idx])",
             "(t[q_idx] < t[kv_idx]) != (t[kv_idx] <= 1 and not t[q_idx] == t[kv_idx])",
             "(t[q_idx] if t[q_idx] < t[kv_idx] else t[kv_idx] * 2) >= 2",
             "t[q_idx] > 0 if t[q_idx] <= t[kv_idx] else q_idx // 64 != kv_idx // 64",
             "t[q_idx] == t[kv_idx] and t[q_idx] * 0.5 + t[kv_idx] > 0.0",
             "t[q_idx] == t[kv_idx] or (q_idx ^ kv_idx) & 64 == 0",
         }) {
        CAPTURE(mask);
        EmittedMask emitted("buffer t: i32[N]\nmask_mod = " + mask);
        REQUIRE(emitted.exists());
        REQUIRE(emitted.has_intervals());
        Random random(13);
        int hidden = 0, whole = 0;
        for (int repeat = 0; repeat < 400; ++repeat) {
            std::vector<std::int32_t> table;
            while (std::ssize(table) < kLength)
                table.resize(table.size() + static_cast<std::size_t>(random.integer(1, 120)),
                             static_cast<std::int32_t>(random.integer(-3, 3)));
            table.resize(kLength);
            cpu::Tile tile{};
            tile.rows = random.integer(1, cpu::kMaskQueryTile);
            tile.columns = random.integer(1, cpu::kMaskKeyTile);
            tile.q_begin = random.integer(0, kLength - tile.rows);
            tile.kv_begin = random.integer(0, kLength - tile.columns);
            const std::int64_t found = emitted.by_intervals(table.data(), kLength, 1, tile);
            hidden += found == cpu::kSeenMasked ? 1 : 0;
            whole += found == cpu::kSeenShown ? 1 : 0;
            if (found != 0) CHECK(found == emitted(table.data(), kLength, 1, tile));
        }
        CHECK(hidden + whole > 20);
    }
    // Nothing is known of what one element of each side gives together.
    for (const char* text : {"mask_mod = (q_idx ^ kv_idx) & 64 == 0",
                             "buffer m: bool[N, N]\nmask_mod = m[q_idx, kv_idx]"})
        CHECK_FALSE(EmittedMask(text).has_intervals());
}

TEST_CASE("programs whose mask and scores hide nothing have no mask function") {
    for (const char* text : {"score_mod = score", "mask_mod = q_idx >= kv_idx",
                             "buffer s: f32[H]\nscore_mod = score + s[h] * (kv_idx - q_idx)",
                             "buffer t: f32[32]\nscore_mod = score + t[min(q_idx - kv_idx, 31)]"})
        CHECK_FALSE(EmittedMask(text).exists());
}

namespace {

// Of a tile's columns: those that a stand-in for emitted code shows.
struct Shown {
    std::int64_t begin, end;
};
void show_range(const std::uint64_t* arguments, cpu::Tile* tile) {
    const auto& shown = *reinterpret_cast<const Shown*>(arguments);
    for (std::int64_t kv = tile->kv_begin; kv < tile->kv_begin + tile->columns; ++kv)
        tile->seen |= kv >= shown.begin && kv < shown.end ? cpu::kSeenShown : cpu::kSeenMasked;
}

} // namespace

TEST_CASE("parts of a tile that show nothing are left out at both ends") {
    Random random(5);
    for (int repeat = 0; repeat < 2000; ++repeat) {
        const std::int64_t begin = random.integer(0, 40) * 16;
        const cpu::Range columns{begin, begin + random.integer(1, 256)};
        const std::int64_t from = random.integer(0, 900);
        const Shown shown{from, from + random.integer(0, 400)};
        cpu::KernelShape shape;
        AttentionArguments arguments{};
        cpu::Launch launch;
        launch.shape = &shape;
        launch.arguments = &arguments;
        launch.words = reinterpret_cast<const std::uint64_t*>(&shown);
        cpu::TileFunctions functions{};
        functions.mask = show_range;
        cpu::Tile tile{};
        const cpu::VisibleColumns found = cpu::find_visible_columns(
            functions, launch, {}, {{}, 0, 0}, {}, tile, {0, 10}, columns);
        const cpu::Range visible{std::max(columns.begin, shown.begin),
                                 std::min(columns.end, shown.end)};
        CHECK(found.columns.empty() == visible.empty());
        if (visible.empty()) continue;
        CHECK(found.columns.begin <= visible.begin);
        CHECK(visible.begin - found.columns.begin < cpu::kMaskKeyTile);
        CHECK(found.columns.end >= visible.end);
        CHECK(found.columns.end - visible.end < cpu::kMaskKeyTile);
        CHECK(found.is_full ==
              (found.columns.begin == visible.begin && found.columns.end == visible.end));
    }
}

TEST_CASE("heads that share mask results evaluate each tile once") {
    constexpr std::int64_t kQueries = 130, kKeys = 700;
    CHECK(cpu::SharedMaskResults::count(kQueries, kKeys) == 3 * 6);
    std::vector<std::uint8_t> seen(3 * 6);
    const cpu::SharedMaskResults mask_results(seen.data(), kKeys);
    cpu::KernelShape shape;
    AttentionArguments arguments{};
    cpu::Launch launch;
    launch.shape = &shape;
    launch.arguments = &arguments;
    cpu::TileFunctions functions{};
    functions.mask = show_range;
    for (int head = 0; head < 2; ++head)
        for (std::int64_t q = 0; q < kQueries; q += 64)
            for (std::int64_t kv = 0; kv < kKeys; kv += 256) {
                // The second head would see all.
                const Shown shown{head == 0 ? 100 + q : 0, head == 0 ? 300 + q : kKeys};
                launch.words = reinterpret_cast<const std::uint64_t*>(&shown);
                const cpu::Range rows{q, std::min(q + 64, kQueries)},
                    columns{kv, std::min(kv + 256, kKeys)};
                cpu::Tile tile{};
                const cpu::VisibleColumns visible = cpu::find_visible_columns(
                    functions, launch, {}, {{}, 0, 0}, mask_results, tile, rows, columns);
                const bool is_visible = kv < 300 + q && 100 + q < columns.end;
                CHECK(visible.columns.empty() == !is_visible);
            }
}
