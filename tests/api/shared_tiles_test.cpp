// Requests of many queries on the CPU, whose pieces of work share packed tiles of keys, against the
// same queries as requests of their own, none of which shares a tile with another.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "api/tensor.h"
#include "flexc/flexc.h"
#include "random.h"

using namespace flexc;
using flexc::test::Random;
using flexc::test::Tensor;

#if FLEXC_WITH_CPU

namespace {

constexpr int kHeads = 3, kPage = 16, kAlone = 64;

struct Shape {
    std::int64_t queries, keys, dim;
};

// Outputs of `queries` rows of q, as one request or as many of kAlone rows, by some threads.
std::vector<std::byte> outputs(const Kernel& kernel, const Shape& shape, bool as_one, int threads,
                               const Tensor& q, const Tensor& k, const Tensor& v, Tensor& o) {
    std::vector<std::int32_t> first, starts, used, table;
    const auto pages = static_cast<std::int32_t>((shape.keys + kPage - 1) / kPage);
    for (std::int64_t row = 0; row < shape.queries; row += as_one ? shape.queries : kAlone) {
        first.push_back(static_cast<std::int32_t>(row));
        starts.push_back(static_cast<std::int32_t>(row));
        used.push_back(static_cast<std::int32_t>(shape.keys));
        for (std::int32_t page = 0; page < pages; ++page)
            table.push_back(pages - 1 - page);
    }
    const auto requests = static_cast<std::int64_t>(first.size());
    first.push_back(static_cast<std::int32_t>(shape.queries));
    PlanOptions options;
    options.lengths = {.cu_seqlens_q = first,
                       .seqused_k = used,
                       .page_table = table,
                       .page_size = kPage,
                       .pages = pages,
                       .query_starts = starts};
    options.cpu_threads.count = threads;
    const auto plan = kernel.plan({.batch = requests,
                                   .heads = kHeads,
                                   .kv_heads = kHeads,
                                   .q_len = as_one ? shape.queries : kAlone,
                                   .kv_len = shape.keys},
                                  {}, {}, options);
    REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().message));
    auto memory = DeviceMemory::allocate(Device::cpu(), plan->workspace_bytes() + 1);
    REQUIRE(memory.has_value());
    (void)memory->fill(0xff);
    const auto done =
        kernel.forward(*plan, {.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view()}, {},
                       {memory->data(), plan->workspace_bytes()});
    REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message));
    return o.take();
}

} // namespace

TEST_CASE("pieces that share packed tiles give what each gives alone") {
    Random random(17);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const char* text : {"score_mod = score\nmask_mod = kv_idx != 21",
                                 "score_mod = score\nmask_mod = q_idx + 60 >= kv_idx"}) {
            CAPTURE(name(dtype));
            CAPTURE(text);
            // Fewer keys than are divided.
            const Shape shape{random.integer(200, 700), random.integer(257, 500),
                              32 * random.integer(1, 3)};
            CAPTURE(shape.queries);
            CAPTURE(shape.keys);
            const auto kernel = compile(text, {.dtype = dtype,
                                               .head_dim = static_cast<int>(shape.dim),
                                               .query_layout = Layout::ragged,
                                               .key_layout = Layout::paged,
                                               .device = Device::cpu(),
                                               .cache = {.disk = false}});
            REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().message));
            const std::int64_t slots = (shape.keys + kPage - 1) / kPage * kPage;
            const auto numbers = [&](std::int64_t rows) {
                std::vector<double> values(static_cast<std::size_t>(rows * shape.dim));
                for (double& value : values)
                    value = random.real();
                return values;
            };
            const Device cpu = Device::cpu();
            Tensor q(cpu, dtype, {shape.queries, kHeads, shape.dim});
            Tensor k(cpu, dtype, {slots / kPage, kPage, kHeads, shape.dim});
            Tensor v(cpu, dtype, {slots / kPage, kPage, kHeads, shape.dim});
            Tensor o(cpu, dtype, {shape.queries, kHeads, shape.dim});
            std::vector<double> keys = numbers(slots * kHeads), values = numbers(slots * kHeads);
            // Key 21, of the last page but one, has numbers that are not finite.
            const std::int64_t slot = slots - 2 * kPage + 21 % kPage;
            if (std::string_view(text).find("!=") != std::string_view::npos)
                for (std::int64_t at = slot * kHeads * shape.dim;
                     at < (slot + 1) * kHeads * shape.dim; ++at)
                    keys[static_cast<std::size_t>(at)] = values[static_cast<std::size_t>(at)] =
                        std::numeric_limits<double>::infinity();
            q.set(numbers(shape.queries * kHeads));
            k.set(keys);
            v.set(values);
            const auto alone = outputs(*kernel, shape, false, 1, q, k, v, o);
            for (const int threads : {1, 2, 7})
                CHECK(outputs(*kernel, shape, true, threads, q, k, v, o) == alone);
        }
}

#endif
