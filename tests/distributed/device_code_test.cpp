// What ranks.cu does, run by the host, beside what the host does by itself.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "api/tensor.h"
#include "cuda/host_module.h"
#include "distributed/host_work.h"
#include "distributed/moves.h"
#include "draws.h"
#include "fresh_seed.h"

using namespace flexc;
using namespace flexc::test;

namespace {

// Two blocks of all their threads, one by one or, where they exchange values, warp by warp.
constexpr const char* kText = R"(
#include "ranks.cu"
template <typename Work> void each_thread(Work work) {
    gridDim.x = 2;
    for (blockIdx.x = 0; blockIdx.x < 2; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < kThreads; ++threadIdx.x)
            work();
}
template <typename Work> void each_warp(Work work) {
    for (unsigned block = 0; block < 2; ++block)
        for (unsigned warp = 0; warp < kWarps; ++warp)
            run_warp([&](int lane) {
                gridDim.x = 2;
                blockIdx.x = block;
                threadIdx.x = 32 * warp + lane;
                work();
            });
}
extern "C" void run_moves(const Moves* moves, unsigned count) {
    for (blockIdx.y = 0; blockIdx.y < count; ++blockIdx.y)
        each_thread([&] { flexc_move(*moves); });
}
extern "C" void run_merge(const PartialSums* sums, const Part* part) {
    each_warp([&] { flexc_merge(*sums, *part); });
}
extern "C" void run_finish(const FinishedRows* rows) { each_warp([&] { flexc_finish(*rows); }); }
extern "C" void run_add_sinks(const SinkRows* rows) {
    each_thread([&] { flexc_add_sinks(*rows); });
}
extern "C" void run_sink_gradients(const SinkGradients* sinks) {
    each_warp([&] { flexc_sink_gradients(*sinks); });
}
extern "C" void run_sum_ranks(const RankSums* sums) {
    each_thread([&] { flexc_sum_ranks(*sums); });
}
)";

const HostModule& module() {
    static const HostModule kModule(kText, "");
    return kModule;
}

class Draw {
  public:
    explicit Draw(std::uint32_t seed) : random_(seed) {}
    int below(int end) { return test::draws_below(random_)(end); }
    float real() { return static_cast<float>(std::normal_distribution<double>()(random_)); }
    std::vector<float> reals(std::size_t count) {
        std::vector<float> values(count);
        for (float& value : values)
            value = real();
        return values;
    }

    // Dims in any order in memory, with gaps.
    TensorView tensor(std::vector<std::byte>& memory, DType dtype,
                      const std::vector<std::int64_t>& shape) {
        TensorView view = TensorView::contiguous(nullptr, dtype, shape);
        std::vector<std::size_t> order(shape.size());
        for (std::size_t i = 0; i < order.size(); ++i)
            order[i] = i;
        const bool is_aligned = below(2) == 0;
        if (!is_aligned && below(2) == 0) std::ranges::shuffle(order, random_);
        std::int64_t stride = !is_aligned && below(4) == 0 ? 2 : 1;
        const std::int64_t gap = is_aligned ? 16 * below(2) : below(3);
        for (std::size_t i = order.size(); i-- > 0;) {
            view.strides[order[i]] = stride;
            stride = stride * shape[order[i]] + gap;
        }
        const std::size_t offset = is_aligned ? 0 : size_of(dtype);
        memory.resize((static_cast<std::size_t>(stride) + 1) * size_of(dtype) + 64);
        // Numbers whose bits are those of some f32 too.
        for (std::size_t at = 0; at + 8 <= memory.size(); at += size_of(dtype))
            is_float(dtype) ? store(dtype, &memory[at], real())
                            : store(dtype, &memory[at], below(100));
        const auto start = reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
        view.data = memory.data() + (64 - start) % 64 + offset;
        return view;
    }

  private:
    std::mt19937 random_;
};

} // namespace

TEST_CASE("rows are moved, converted and added as the host does it, and nothing else is touched") {
    Draw draw(fresh_seed());
    struct Types {
        DType from, to;
    };
    const Types types[] = {
        {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::i8, DType::i8},
        {DType::i64, DType::i64}, {DType::f16, DType::f32},   {DType::bf16, DType::f32},
        {DType::f32, DType::f16}, {DType::f32, DType::bf16},  {DType::f32, DType::f64}};
    int by_fours = 0, units_of_16 = 0;
    for (int round = 0; round < 400; ++round) {
        const Types& type = types[draw.below(9)];
        std::vector<std::int64_t> shape;
        for (int dim = draw.below(5); dim >= 0; --dim)
            shape.push_back(draw.below(9) == 0 ? 0 : 1 + draw.below(4));
        if (draw.below(2) == 0) shape.push_back(4 + 12 * draw.below(2));
        std::vector<std::byte> from_memory, to_memory;
        const TensorView from = draw.tensor(from_memory, type.from, shape);
        const TensorView to = draw.tensor(to_memory, type.to, shape);
        const bool is_sum = type.from == DType::f32 && type.to == DType::f32 && draw.below(2) == 0;
        const ranks::Move move =
            is_sum ? distributed::addition_of(from, to) : distributed::move_of(from, to);
        by_fours += move.by_fours ? 1 : 0;
        units_of_16 += move.kind == ranks::Move::kCopy16 ? 1 : 0;
        const std::vector<std::byte> before = to_memory;
        distributed::run(move);
        const std::vector<std::byte> by_host = to_memory;
        std::ranges::copy(before, to_memory.begin());
        // The last of a launch, whose others have nothing to do.
        ranks::Moves moves{};
        const int count = 1 + draw.below(ranks::Moves::kMost);
        for (ranks::Move& other : moves.all)
            other = {.units = 0, .rank = 1, .extents = {1}};
        moves.all[count - 1] = move;
        module().function<void(const ranks::Moves*, unsigned)>("run_moves")(
            &moves, static_cast<unsigned>(count));
        CAPTURE(round);
        CAPTURE(name(type.from));
        CAPTURE(name(type.to));
        CHECK(to_memory == by_host);

        // By the definition: each element, and no other byte.
        std::vector<std::byte> expected = before;
        std::vector<std::int64_t> index(shape.size());
        for (std::int64_t i = 0; i < from.elements(); ++i) {
            std::int64_t rest = i, there = 0, here = 0;
            for (std::size_t dim = shape.size(); dim-- > 0;) {
                there += rest % shape[dim] * from.strides[dim];
                here += rest % shape[dim] * to.strides[dim];
                rest /= shape[dim];
            }
            const auto* source = static_cast<const std::byte*>(from.data) +
                                 there * static_cast<std::int64_t>(size_of(type.from));
            const auto at = static_cast<std::byte*>(to.data) - to_memory.data() +
                            here * static_cast<std::int64_t>(size_of(type.to));
            std::byte* const target = expected.data() + at;
            if (type.from == type.to && !is_sum) {
                std::memcpy(target, source, size_of(type.from));
            } else {
                const float sum = is_sum ? static_cast<float>(load(type.to, target)) +
                                               static_cast<float>(load(type.from, source))
                                         : static_cast<float>(load(type.from, source));
                store(type.to, target, sum);
            }
        }
        CHECK(by_host == expected);
    }
    CHECK(by_fours > 10);
    CHECK(units_of_16 > 10);
}

TEST_CASE("partial results are merged and finished as the host does it") {
    Draw draw(fresh_seed());
    const auto work = distributed::make_host_work();
    for (int round = 0; round < 12; ++round) {
        CAPTURE(round);
        const std::int64_t batch = 1 + draw.below(2), heads = 1 + draw.below(3),
                           rows = 1 + draw.below(7), columns = 1 + draw.below(70);
        struct Sums {
            std::vector<float> outputs, largest;
            std::vector<double> weights;
            ranks::PartialSums view;
        };
        const auto count = static_cast<std::size_t>(batch * heads * rows);
        std::array<Sums, 2> sums; // by the host, and by ranks.cu
        for (Sums& one : sums) {
            one.outputs.assign(count * static_cast<std::size_t>(columns), NAN);
            one.largest.assign(count, NAN);
            one.weights.assign(count, 0);
            one.view = {
                one.outputs.data(),       one.largest.data(), one.weights.data(), heads, rows,
                static_cast<int>(columns)};
        }
        for (int part = draw.below(5); part > 0; --part) {
            const std::int64_t first_head = draw.below(static_cast<int>(heads)),
                               first_row = draw.below(static_cast<int>(rows));
            ranks::Part one{.first_head = first_head,
                            .heads = 1 + draw.below(static_cast<int>(heads - first_head)),
                            .first_row = first_row,
                            .rows = 1 + draw.below(static_cast<int>(rows - first_row))};
            one.count = batch * one.heads * one.rows;
            const auto size = static_cast<std::size_t>(one.count);
            const auto o = draw.reals(size * static_cast<std::size_t>(columns));
            auto lse = draw.reals(size);
            for (float& value : lse)
                value = draw.below(4) == 0 ? -INFINITY : value * 30;
            one.lse = lse.data();
            if (draw.below(3) > 0) {
                one.o = o.data();
            } else { // the part is where the sums are
                for (Sums& all : sums)
                    for (long long row = 0; row < one.count; ++row) {
                        const auto place = static_cast<std::size_t>(one.place(row, all.view));
                        const auto width = static_cast<std::size_t>(columns);
                        all.largest[place] = lse[static_cast<std::size_t>(row)];
                        std::copy_n(&o[static_cast<std::size_t>(row) * width], width,
                                    &all.outputs[place * width]);
                    }
            }
            REQUIRE(work->tensors().merge(sums[0].view, one));
            module().function<void(const ranks::PartialSums*, const ranks::Part*)>("run_merge")(
                &sums[1].view, &one);
        }
        CHECK(sums[0].weights == sums[1].weights);
        const auto sinks = draw.reals(count);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            std::vector<std::byte> o, lse;
            const std::int64_t first = draw.below(static_cast<int>(rows));
            const bool has_sinks = draw.below(2) == 0, has_lse = draw.below(3) > 0;
            const TensorView to = draw.tensor(o, dtype, {batch, heads, rows - first, columns});
            const TensorView to_lse = draw.tensor(lse, DType::f32, {batch, heads, rows - first});
            const auto own = sums[0].outputs; // the host changes them
            const auto last =
                count / static_cast<std::size_t>(rows) * static_cast<std::size_t>(rows - first);
            const auto part = draw.reals(last * static_cast<std::size_t>(columns));
            auto part_lse = draw.reals(last);
            for (float& value : part_lse)
                value = draw.below(4) == 0 ? -INFINITY : value * 30;
            const bool has_part = draw.below(2) == 0;
            ranks::FinishedRows finished{.sums = sums[1].view,
                                         .part_o = has_part ? part.data() : nullptr,
                                         .part_lse = has_part ? part_lse.data() : nullptr,
                                         .sinks = has_sinks ? sinks.data() : nullptr,
                                         .batch = batch,
                                         .first_row = first,
                                         .rows = rows - first,
                                         .o = static_cast<char*>(to.data),
                                         .lse = has_lse ? static_cast<char*>(to_lse.data) : nullptr,
                                         .o_type = dtype == DType::f32 ? ranks::FinishedRows::kF32
                                                   : dtype == DType::f16
                                                       ? ranks::FinishedRows::kF16
                                                       : ranks::FinishedRows::kBf16};
            for (std::size_t dim = 0; dim < 4; ++dim)
                finished.o_strides[dim] = to.strides[dim] * static_cast<long long>(size_of(dtype));
            for (std::size_t dim = 0; dim < 3; ++dim)
                finished.lse_strides[dim] = to_lse.strides[dim] * 4;
            const auto o_before = o, lse_before = lse;
            module().function<void(const ranks::FinishedRows*)>("run_finish")(&finished);
            const auto o_by_code = o, lse_by_code = lse;
            std::ranges::copy(o_before, o.begin());
            std::ranges::copy(lse_before, lse.begin());
            finished.sums = sums[0].view;
            REQUIRE(work->tensors().finish(finished));
            std::ranges::copy(own, sums[0].outputs.begin());
            CHECK(o == o_by_code);
            CHECK(lse == lse_by_code);
            CHECK((o != o_before || (!has_part && sums[0].weights == std::vector<double>(count))));
        }
    }
}

TEST_CASE("sinks and sums over ranks are as the host has them") {
    Draw draw(fresh_seed());
    const auto work = distributed::make_host_work();
    for (int round = 0; round < 10; ++round) {
        const auto count = static_cast<std::size_t>(draw.below(700));
        const auto columns = static_cast<std::size_t>(1 + draw.below(40));
        auto sinks = draw.reals(count), lse = draw.reals(count), d_lse = draw.reals(count);
        for (std::size_t i = 0; i < count; ++i) {
            if (draw.below(8) == 0) sinks[i] = -INFINITY;
            if (draw.below(8) == 0) lse[i] = -INFINITY;
            if (draw.below(8) == 0) d_lse[i] = 0;
            sinks[i] *= 30;
        }
        auto other_lse = lse, other_d_lse = d_lse;
        const bool has_gradient = draw.below(2) == 0;
        REQUIRE(work->tensors().add_sinks({sinks.data(), lse.data(),
                                           has_gradient ? d_lse.data() : nullptr,
                                           static_cast<long long>(count)}));
        const ranks::SinkRows rows{sinks.data(), other_lse.data(),
                                   has_gradient ? other_d_lse.data() : nullptr,
                                   static_cast<long long>(count)};
        module().function<void(const ranks::SinkRows*)>("run_add_sinks")(&rows);
        CHECK(lse == other_lse);
        CHECK(d_lse == other_d_lse);

        const auto o = draw.reals(count * columns), d_out = draw.reals(count * columns);
        std::array<std::vector<float>, 2> gradients;
        for (std::size_t i : {0u, 1u}) {
            gradients[i].assign(count, NAN);
            const ranks::SinkGradients learnt{sinks.data(),
                                              lse.data(),
                                              o.data(),
                                              d_out.data(),
                                              gradients[i].data(),
                                              static_cast<long long>(count),
                                              static_cast<int>(columns)};
            if (i == 0)
                REQUIRE(work->tensors().sink_gradients(learnt));
            else
                module().function<void(const ranks::SinkGradients*)>("run_sink_gradients")(&learnt);
        }
        for (std::size_t i = 0; i < count; ++i) // products are added in another order
            CHECK(gradients[1][i] == doctest::Approx(gradients[0][i]).epsilon(1e-6));

        const auto parts = draw.reals(3 * count);
        std::vector<float> by_host(count), by_code(count);
        ranks::RankSums sums{parts.data(), by_host.data(), static_cast<long long>(count), 3, 0.5f};
        REQUIRE(work->tensors().sum(sums));
        sums.to = by_code.data();
        module().function<void(const ranks::RankSums*)>("run_sum_ranks")(&sums);
        CHECK(by_host == by_code);
    }
}
