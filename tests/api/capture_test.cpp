// Plans inside CUDA graphs. Needs a GPU: tests/gpu runs it.
#include <cmath>
#include <dlfcn.h>

#include <doctest/doctest.h>

#include "api/case.h"

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
