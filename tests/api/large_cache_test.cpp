// Pages that lie far apart: offsets into a cache take 64 bits, of its bytes and of its elements.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include <doctest/doctest.h>

#include "api/tensor.h"
#include "cpu_options.h"
#include "cuda/driver.h"
#include "flexc/flexc.h"
#include "random.h"

using namespace flexc;

namespace {

constexpr std::int64_t kSlots = 16, kKvHeads = 8, kDim = 128, kHeads = 16;
constexpr std::int64_t kPageElements = kSlots * kKvHeads * kDim;
constexpr std::array<std::int32_t, 2> kKeys = {70, 33};
constexpr std::int64_t kMaxPages = 5, kUsed = 8; // pages of a request, and of both together

// A page's keys and then its values, as bytes of bf16.
using Page = std::vector<std::byte>;

// Keys and values of a cache in one allocation, each page's side by side.
ForwardTensors of_cache(void* data, std::int64_t pages) {
    TensorView k = TensorView::contiguous(data, DType::bf16, {pages, kSlots, kKvHeads, kDim});
    k.strides[0] = 2 * kPageElements;
    TensorView v = k;
    v.data = static_cast<std::byte*>(data) + kPageElements * size_of(DType::bf16);
    return {.k = k, .v = v};
}

// o of both requests; their pages have these numbers, in a cache of so many.
std::vector<std::byte> attend(const Kernel& kernel, Device device, const Page& queries,
                              std::int64_t q_len, const std::vector<std::int32_t>& numbers,
                              void* cache, std::int64_t pages) {
    std::vector<std::int32_t> table(2 * kMaxPages, -1);
    std::copy_n(numbers.begin(), 5, table.begin());
    std::copy_n(numbers.begin() + 5, 3, table.begin() + kMaxPages);
    const std::vector<std::int32_t> cu = {0, static_cast<std::int32_t>(q_len),
                                          static_cast<std::int32_t>(2 * q_len)};
    auto memory = [&](std::size_t bytes) {
        auto made = DeviceMemory::allocate(device, bytes);
        REQUIRE_MESSAGE(made.has_value(), made.error().message);
        return std::move(*made);
    };
    DeviceMemory q = memory(queries.size()), o = memory(queries.size());
    REQUIRE(q.upload(queries.data(), queries.size()));
    const auto plan = kernel.plan(
        {.batch = 2, .heads = kHeads, .kv_heads = kKvHeads, .q_len = q_len, .kv_len = kKeys[0]}, {},
        {},
        {.lengths = {.cu_seqlens_q = cu,
                     .seqused_k = kKeys,
                     .page_table = table,
                     .page_size = kSlots,
                     .pages = pages}});
    REQUIRE_MESSAGE(plan.has_value(), plan.error().message);
    const DeviceMemory workspace = memory(std::max<std::size_t>(plan->workspace_bytes(), 1));
    ForwardTensors tensors = of_cache(cache, pages);
    tensors.q = TensorView::contiguous(q.data(), DType::bf16, {2 * q_len, kHeads, kDim});
    tensors.o = TensorView::contiguous(o.data(), DType::bf16, {2 * q_len, kHeads, kDim});
    const auto done = kernel.forward(*plan, tensors, {}, {workspace.data(), workspace.bytes()});
    REQUIRE_MESSAGE(done.has_value(), done.error().message);
    std::vector<std::byte> got(queries.size());
    REQUIRE(o.download(got.data(), got.size()));
    return got;
}

// numbers: of the pages that both requests use. put(page's number, its bytes): writes a page.
template <typename Put>
void check_far_pages(Device device, const std::vector<std::int32_t>& numbers, void* cache,
                     std::int64_t pages, Put put) {
    test::Random random(1);
    const auto drawn = [&](std::int64_t elements) {
        Page page(static_cast<std::size_t>(elements) * size_of(DType::bf16));
        for (std::int64_t i = 0; i < elements; ++i)
            test::store(DType::bf16, &page[static_cast<std::size_t>(2 * i)], random.real());
        return page;
    };
    Page all; // of a small cache, with the same pages
    for (const std::int32_t number : numbers) {
        const Page page = drawn(2 * kPageElements);
        put(number, page);
        all.insert(all.end(), page.begin(), page.end());
    }
    auto near = DeviceMemory::allocate(device, all.size());
    REQUIRE(near.has_value());
    REQUIRE(near->upload(all.data(), all.size()));
    const auto kernel = compile("mask_mod = q_idx >= kv_idx", {.dtype = DType::bf16,
                                                               .head_dim = kDim,
                                                               .query_layout = Layout::ragged,
                                                               .key_layout = Layout::paged,
                                                               .device = device,
                                                               .backward = false});
    REQUIRE_MESSAGE(kernel.has_value(), kernel.error().message);
    for (const std::int64_t q_len : {1, 33}) { // kernels of few queries, and of many
        CAPTURE(q_len);
        const Page queries = drawn(2 * q_len * kHeads * kDim);
        const auto far = attend(*kernel, device, queries, q_len, numbers, cache, pages);
        const auto expected =
            attend(*kernel, device, queries, q_len, {0, 1, 2, 3, 4, 5, 6, 7}, near->data(), kUsed);
        CHECK(far == expected);
        CHECK(std::ranges::any_of(far, [](std::byte byte) { return byte != std::byte{0}; }));
    }
}

// Numbers around the places where 31 and 32 bits of elements and of bytes end, and the last ones.
std::vector<std::int32_t> far_numbers(std::int64_t pages) {
    const auto page_at = [](std::int64_t element) {
        return static_cast<std::int32_t>(element / (2 * kPageElements));
    };
    return {0,
            page_at(std::int64_t{1} << 31),
            page_at(std::int64_t{1} << 30),
            static_cast<std::int32_t>(pages - 1),
            page_at(std::int64_t{1} << 32) + 1,
            static_cast<std::int32_t>(pages - 2),
            page_at(std::int64_t{1} << 31) - 1,
            page_at(std::int64_t{1} << 32)};
}

std::ptrdiff_t byte_of(std::int32_t page) {
    return std::ptrdiff_t{page} * 2 * kPageElements *
           static_cast<std::ptrdiff_t>(size_of(DType::bf16));
}

} // namespace

TEST_CASE("a cache of 200 GB on a CPU") {
    if (!test::has_cpu()) return;
    // Address space alone: what no request uses is never touched.
    constexpr std::size_t kBytes = 200'000'000'000;
    const std::int64_t pages = static_cast<std::int64_t>(kBytes) / byte_of(1);
    void* const cache = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cache == MAP_FAILED) {
        MESSAGE("no address space for it here");
        return;
    }
    check_far_pages(Device::cpu(), far_numbers(pages), cache, pages,
                    [&](std::int32_t number, const Page& page) {
                        std::memcpy(static_cast<std::byte*>(cache) + byte_of(number), page.data(),
                                    page.size());
                    });
    munmap(cache, kBytes);
}

TEST_CASE("a cache of more than 2^32 elements on a GPU" * doctest::skip()) {
    if (default_device().kind != Device::Kind::cuda) return;
    constexpr std::int64_t kPages = 140'000;
    const Device device = Device::cuda(0);
    auto cache = DeviceMemory::allocate(device, static_cast<std::size_t>(byte_of(kPages)));
    REQUIRE_MESSAGE(cache.has_value(), cache.error().message);
    check_far_pages(
        device, far_numbers(kPages), cache->data(), kPages,
        [&](std::int32_t number, const Page& page) {
            auto scope = cuda::ContextScope::enter(0);
            REQUIRE(scope.has_value());
            REQUIRE(cuda::copy_to_device(static_cast<std::byte*>(cache->data()) + byte_of(number),
                                         page.data(), page.size()));
        });
}
