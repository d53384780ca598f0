// Plans inside CUDA graphs. Needs a GPU: tests/gpu runs it.
#include <algorithm>
#include <cmath>
#include <dlfcn.h>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "api/case.h"
#include "draws.h"

using namespace flexc;

namespace {

// What the test asks of the driver. Status 0 is success.
struct Driver {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
    template <typename... Arguments> void call(const char* name, Arguments... arguments) const {
        CAPTURE(name);
        auto* function = reinterpret_cast<int (*)(Arguments...)>(::dlsym(library, name));
        const bool is_there = function != nullptr;
        REQUIRE(is_there);
        REQUIRE(function(arguments...) == 0);
    }
};

constexpr std::int64_t kLength = 300, kDim = 64;

// Each row sees its document: with scores of zero, the exponent of lse is the document's length.
class Documents {
  public:
    explicit Documents(std::string_view text) {
        auto compiled = compile(
            text,
            {.dtype = DType::bf16, .head_dim = kDim, .device = Device::cuda(0), .backward = false});
        REQUIRE(compiled);
        kernel = std::move(*compiled);
        const std::vector<std::uint16_t> zeros(kLength * kDim);
        REQUIRE(q.upload(zeros.data(), zeros.size() * 2));
    }
    void set_length(int length) {
        std::vector<std::int32_t> documents(kLength);
        for (std::size_t i = 0; i < kLength; ++i)
            documents[i] = static_cast<std::int32_t>(i) / length;
        REQUIRE(doc.upload(documents.data(), kLength * 4));
    }
    std::vector<NamedTensor> buffers() const {
        return {{"doc", TensorView::contiguous(doc.data(), DType::i32, {kLength})}};
    }
    void forward(const Plan& plan, Stream stream) const {
        const auto tensor = [](const DeviceMemory& of) {
            return TensorView::contiguous(of.data(), DType::bf16, {1, 1, kLength, kDim});
        };
        const auto sums = TensorView::contiguous(lse.data(), DType::f32, {1, 1, kLength});
        REQUIRE(plan.workspace_bytes() <= kWorkspace);
        REQUIRE(kernel.forward(plan, {tensor(q), tensor(q), tensor(q), tensor(o), sums}, buffers(),
                               {workspace.data(), kWorkspace}, stream));
    }
    long seen() const {
        std::vector<float> rows(kLength);
        REQUIRE(lse.download(rows.data(), kLength * 4));
        return std::lround(std::exp(rows[10]));
    }

    Kernel kernel;

  private:
    static DeviceMemory memory(std::size_t bytes) {
        auto made = DeviceMemory::allocate(Device::cuda(0), bytes);
        REQUIRE(made);
        return std::move(*made);
    }
    DeviceMemory q = memory(kLength * kDim * 2), o = memory(kLength * kDim * 2);
    DeviceMemory lse = memory(kLength * 4), doc = memory(kLength * 4);
    static constexpr std::size_t kWorkspace = 1 << 16;
    DeviceMemory workspace = memory(kWorkspace);
};

// What a call puts on a stream.
class Graph {
  public:
    template <typename Call> explicit Graph(Call call) {
        REQUIRE(driver_.library != nullptr);
        driver_.call("cuDeviceGet", &device_, 0);
        driver_.call("cuDevicePrimaryCtxRetain", &context_, device_);
        driver_.call("cuCtxSetCurrent", context_);
        constexpr unsigned kNonBlocking = 1;
        constexpr int kThreadLocal = 1;
        driver_.call("cuStreamCreate", &stream_, kNonBlocking);
        driver_.call("cuStreamBeginCapture_v2", stream_, kThreadLocal);
        call(Stream{stream_});
        driver_.call("cuStreamEndCapture", stream_, &graph_);
        driver_.call("cuGraphInstantiateWithFlags", &executable_, graph_, 0ull);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph() {
        driver_.call("cuGraphExecDestroy", executable_);
        driver_.call("cuGraphDestroy", graph_);
        driver_.call("cuStreamDestroy_v2", stream_);
        driver_.call("cuDevicePrimaryCtxRelease_v2", device_);
    }
    void launch() const {
        driver_.call("cuGraphLaunch", executable_, stream_);
        driver_.call("cuStreamSynchronize", stream_);
    }

  private:
    const Driver driver_;
    int device_ = 0;
    void *context_ = nullptr, *stream_ = nullptr, *graph_ = nullptr, *executable_ = nullptr;
};

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("a block mask is built again by every launch of a graph, on Hopper" * doctest::skip()) {
    Documents documents("buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]");
    documents.set_length(20);
    auto plan = documents.kernel.plan({.q_len = kLength, .kv_len = kLength}, documents.buffers());
    REQUIRE(plan);
    // Once outside, so that all is loaded.
    REQUIRE(documents.kernel.update(*plan, documents.buffers()));
    documents.forward(*plan, {});
    CHECK(documents.seen() == 20);

    const Graph graph([&](Stream stream) {
        REQUIRE(documents.kernel.update(*plan, documents.buffers(), stream));
        documents.forward(*plan, stream);
    });
    for (const int length : {200, 50}) {
        documents.set_length(length);
        graph.launch();
        CHECK(documents.seen() == length);
    }
}

TEST_CASE("what is computed before a forward is computed by every launch of a graph, on Hopper" *
          doctest::skip()) {
    // Each row sees the keys whose addend is zero.
    Documents shown("buffer doc: i32[KV_LEN]\n"
                    "score_mod = score + (0.0 if doc[kv_idx] == 0 else -inf)");
    shown.set_length(20);
    auto plan = shown.kernel.plan({.q_len = kLength, .kv_len = kLength}, shown.buffers());
    REQUIRE(plan);
    REQUIRE(plan->workspace_bytes() > 0);
    shown.forward(*plan, {});
    CHECK(shown.seen() == 20);
    const Graph graph([&](Stream stream) { shown.forward(*plan, stream); });
    for (const int length : {200, 50}) {
        shown.set_length(length);
        graph.launch();
        CHECK(shown.seen() == length);
    }
}

TEST_SUITE_END();

// With products of zero, the exponent of lse is how many keys a row sees.
// on_device: lengths lie in the device's memory, and the graph reads them. hides_tiles: a block
// mask says which tiles are visited, and every launch of the graph builds it. captures_empty: no
// request has queries when the graph is made, else all are as long as they may be.
template <int kMostQueries>
static void check_growing_requests(bool on_device, bool hides_tiles, bool captures_empty = false) {
    constexpr int kRequests = 5, kPageSize = 16, kMostPages = 40;
    constexpr std::int64_t kRows = kRequests * kMostQueries, kHeads = 4, kPages = 300;
    constexpr std::int64_t kMostKeys = kMostPages * kPageSize;
    auto compiled = compile(hides_tiles ? "mask_mod = q_idx >= kv_idx and kv_idx // 100 % 3 != 1"
                                        : "mask_mod = q_idx >= kv_idx",
                            {.dtype = DType::bf16,
                             .head_dim = kDim,
                             .query_layout = Layout::ragged,
                             .key_layout = Layout::paged,
                             .device = Device::cuda(0)});
    REQUIRE(compiled);
    const Kernel kernel = *compiled;
    const auto memory = [](std::size_t bytes) {
        auto made = DeviceMemory::allocate(Device::cuda(0), bytes);
        REQUIRE(made);
        REQUIRE(made->fill(0));
        return std::move(*made);
    };
    const DeviceMemory q = memory(kRows * kHeads * kDim * 2), o = memory(kRows * kHeads * kDim * 2);
    const DeviceMemory cache = memory(kPages * kPageSize * 2 * kDim * 2);
    DeviceMemory lse = memory(kRows * kHeads * 4);

    std::mt19937 random(1);
    const auto below = test::draws_below(random);
    std::vector<std::int32_t> cu(kRequests + 1), queries(kRequests), keys(kRequests);
    std::vector<std::int32_t> table(kRequests * kMostPages);
    const auto draw = [&](bool longest) {
        for (std::size_t b = 0; b < kRequests; ++b) {
            const int rows = longest ? kMostQueries : below(kMostQueries + 1);
            cu[b + 1] = cu[b] + rows;
            queries[b] = longest ? rows : below(rows + 1);
            keys[b] = longest ? kMostKeys : below(4) == 0 ? 0 : below(kMostKeys + 1);
        }
        for (std::int32_t& page : table)
            page = below(kPages);
    };
    const auto lengths = [&] {
        return on_device ? Lengths{.page_size = kPageSize, .pages = kPages, .on_device = true}
                         : Lengths{.cu_seqlens_q = cu,
                                   .seqused_q = queries,
                                   .seqused_k = keys,
                                   .page_table = table,
                                   .page_size = kPageSize,
                                   .pages = kPages};
    };
    draw(true);
    const auto plan = kernel.plan({.batch = kRequests,
                                   .heads = kHeads,
                                   .kv_heads = 2,
                                   .q_len = kMostQueries,
                                   .kv_len = kMostKeys},
                                  {}, {}, {.lengths = lengths()});
    REQUIRE(plan);
    const DeviceMemory workspace = memory(plan->workspace_bytes());
    const auto of_cache =
        TensorView::contiguous(cache.data(), DType::bf16, {kPages, kPageSize, 2, kDim});
    const auto forward = [&](Stream stream) {
        REQUIRE(kernel.forward(
            *plan,
            {.q = TensorView::contiguous(q.data(), DType::bf16, {kRows, kHeads, kDim}),
             .k = of_cache,
             .v = of_cache,
             .o = TensorView::contiguous(o.data(), DType::bf16, {kRows, kHeads, kDim}),
             .lse = TensorView::contiguous(lse.data(), DType::f32, {kRows, kHeads})},
            {}, {workspace.data(), workspace.bytes()}, stream));
    };
    DeviceMemory of_cu = memory(cu.size() * 4), of_queries = memory(queries.size() * 4);
    DeviceMemory of_keys = memory(keys.size() * 4), of_table = memory(table.size() * 4);
    const auto view = [](const DeviceMemory& numbers, std::int64_t count) {
        return TensorView::contiguous(numbers.data(), DType::i32, {count});
    };
    const LengthTensors tensors{.cu_seqlens_q = view(of_cu, kRequests + 1),
                                .seqused_q = view(of_queries, kRequests),
                                .seqused_k = view(of_keys, kRequests),
                                .page_table = view(of_table, std::ssize(table))};
    const auto step = [&](Stream stream) {
        if (on_device) REQUIRE(kernel.update(*plan, tensors, stream));
        forward(stream);
    };
    const auto change = [&] {
        if (!on_device) {
            REQUIRE(kernel.update(*plan, lengths()));
            return;
        }
        REQUIRE(of_cu.upload(cu.data(), cu.size() * 4));
        REQUIRE(of_queries.upload(queries.data(), queries.size() * 4));
        REQUIRE(of_keys.upload(keys.data(), keys.size() * 4));
        REQUIRE(of_table.upload(table.data(), table.size() * 4));
    };
    step({}); // once outside, so that all is loaded
    if (captures_empty) {
        std::ranges::fill(cu, 0);
        std::ranges::fill(queries, 0);
        change();
    }
    const Graph graph(step);
    for (int replay = 0; replay < 50; ++replay) {
        CAPTURE(replay);
        draw(replay % 10 == 9);
        change();
        REQUIRE(lse.fill(0x7f));
        REQUIRE(synchronize(Device::cuda(0)));
        graph.launch();
        std::vector<float> got(kRows * kHeads);
        REQUIRE(lse.download(got.data(), got.size() * 4));
        int wrong = 0;
        for (std::size_t b = 0; b < kRequests; ++b)
            for (int row = cu[b]; row < cu[b + 1]; ++row) {
                const int query = row - cu[b];
                // Queries are at the end of the keys; some may be before the first.
                const int end =
                    query < queries[b] ? std::max(0, keys[b] - queries[b] + query + 1) : 0;
                int seen = 0;
                for (int key = 0; key < end; ++key)
                    seen += !hides_tiles || key / 100 % 3 != 1;
                for (std::int64_t h = 0; h < kHeads; ++h)
                    wrong += std::lround(
                                 std::exp(got[static_cast<std::size_t>(row * kHeads + h)])) != seen;
            }
        CHECK(wrong == 0);
    }
}

TEST_CASE("a graph follows requests that grow, shrink and end" * doctest::skip()) {
    check_growing_requests<3>(false, false);
    check_growing_requests<3>(false, false, true);
    check_growing_requests<50>(false, false, true);
}

TEST_CASE("a graph reads lengths of requests in the device's memory" * doctest::skip()) {
    check_growing_requests<3>(true, false);
}

TEST_CASE("a graph builds the block mask of requests that change" * doctest::skip()) {
    for (const bool on_device : {false, true}) {
        check_growing_requests<3>(on_device, true);
        check_growing_requests<50>(on_device, true);
    }
}
