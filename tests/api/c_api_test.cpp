#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "flexc/flexc.h"
#include "flexc/flexc_c.h"

namespace {

// An error that frees itself.
struct Failure {
    Failure() = default;
    Failure(const Failure&) = delete;
    Failure& operator=(const Failure&) = delete;
    ~Failure() { flexc_error_free(error); }
    flexc_error** out() {
        flexc_error_free(error);
        error = nullptr;
        return &error;
    }
    std::string message() const { return flexc_error_message(error); }
    bool says(const char* text) const { return message().find(text) != std::string::npos; }
    flexc_error* error = nullptr;
};

template <typename Struct> Struct sized() {
    Struct value{};
    value.struct_size = sizeof(Struct);
    return value;
}

flexc_compile_options cpu_options() {
    auto options = sized<flexc_compile_options>();
    options.dtype = FLEXC_F32;
    options.head_dim = 4;
    options.device = FLEXC_DEVICE_CPU;
    options.no_disk_cache = 1;
    return options;
}

[[maybe_unused]] flexc_tensor tensor(std::vector<float>& data,
                                     std::initializer_list<std::int64_t> shape) {
    auto result = sized<flexc_tensor>();
    result.dtype = FLEXC_F32;
    result.data = data.data();
    result.rank = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), result.shape);
    return result;
}

} // namespace

TEST_CASE("C: version and ABI") {
    CHECK(std::string(flexc_version()) == flexc::version());
    CHECK(flexc_abi_version() == FLEXC_ABI_VERSION);
}

TEST_CASE("C: an error has a status and the same text as in C++") {
    Failure failure;
    flexc_signature* signature = nullptr;
    CHECK(flexc_check("score + kv_idy", nullptr, &signature, failure.out()) == FLEXC_ERROR_SYNTAX);
    CHECK(signature == nullptr);
    CHECK(flexc_error_status(failure.error) == FLEXC_ERROR_SYNTAX);
    CHECK(failure.message() == flexc::check("score + kv_idy").error().message);
    CHECK(flexc_check("score + kv_idy", nullptr, &signature, nullptr) == FLEXC_ERROR_SYNTAX);
    CHECK(flexc_check("score", nullptr, &signature, failure.out()) == FLEXC_OK);
    CHECK(failure.error == nullptr);
    flexc_signature_free(signature);
}

TEST_CASE("C: a sink of the options") {
    Failure failure;
    flexc_signature* signature = nullptr;
    auto options = sized<flexc_compile_options>();
    options.sink = "t[h]";
    const char* text = "buffer t: f32[H]\nscore";
    REQUIRE(flexc_check(text, &options, &signature, failure.out()) == FLEXC_OK);
    auto info = sized<flexc_signature_info>();
    REQUIRE(flexc_signature_get(signature, &info, failure.out()) == FLEXC_OK);
    CHECK(std::string(info.sink_depends_on) == "h");
    CHECK(std::string(info.mask_depends_on).empty());
    flexc_signature_free(signature);
}

TEST_CASE("C: a signature says what the program declares") {
    Failure failure;
    flexc_signature* signature = nullptr;
    const char* text = "buffer t: f32[H, 16] grad\nparam cap: f32 = 20.0\n"
                       "score_mod = cap * tanh((score + t[h, q_idx % 16]) / cap)\n"
                       "mask_mod = kv_idx < KV_LEN - 1";
    REQUIRE(flexc_check(text, nullptr, &signature, failure.out()) == FLEXC_OK);
    auto info = sized<flexc_signature_info>();
    REQUIRE(flexc_signature_get(signature, &info, failure.out()) == FLEXC_OK);
    CHECK(info.buffer_count == 1);
    CHECK(info.param_count == 1);
    CHECK(std::strstr(info.score_depends_on, "q_idx") != nullptr);
    CHECK(std::string(info.mask_depends_on).find("kv_idx") != std::string::npos);

    auto buffer = sized<flexc_buffer_info>();
    REQUIRE(flexc_signature_buffer(signature, 0, &buffer, failure.out()) == FLEXC_OK);
    CHECK(std::string(buffer.name) == "t");
    CHECK(buffer.dtype == FLEXC_F32);
    CHECK(buffer.grad == 1);
    REQUIRE(buffer.dim_count == 2);
    CHECK(std::string(buffer.dims[0]) == "H");
    CHECK(std::string(buffer.dims[1]) == "16");
    CHECK(flexc_signature_buffer(signature, 1, &buffer, failure.out()) ==
          FLEXC_ERROR_INVALID_OPTION);

    auto param = sized<flexc_param_info>();
    REQUIRE(flexc_signature_param(signature, 0, &param, failure.out()) == FLEXC_OK);
    CHECK(std::string(param.name) == "cap");
    CHECK(param.default_value == 20.0);
    CHECK(flexc_signature_param(signature, 1, &param, failure.out()) == FLEXC_ERROR_INVALID_OPTION);

    for (std::size_t i = 0; i < info.size_count; ++i)
        CHECK(flexc_signature_size(signature, i) != nullptr);
    CHECK(flexc_signature_size(signature, info.size_count) == nullptr);
    CHECK(flexc_signature_warning(signature, info.warning_count) == nullptr);
    flexc_signature_free(signature);
}

TEST_CASE("C: structs of older and of newer callers") {
    Failure failure;
    flexc_signature* signature = nullptr;
    // An older caller, whose options ended before the buffers.
    auto options = sized<flexc_compile_options>();
    options.struct_size = offsetof(flexc_compile_options, buffers);
    options.buffer_count = 1; // not the caller's
    CHECK(flexc_check("score", &options, &signature, failure.out()) == FLEXC_OK);
    flexc_signature_free(signature);

    struct Newer {
        flexc_compile_options known;
        std::uint64_t unknown;
    } newer{cpu_options(), 0};
    newer.known.struct_size = sizeof newer;
    CHECK(flexc_check("score", &newer.known, &signature, failure.out()) == FLEXC_OK);
    flexc_signature_free(signature);
    newer.unknown = 1;
    CHECK(flexc_check("score", &newer.known, &signature, failure.out()) == FLEXC_ERROR_UNSUPPORTED);

    options = sized<flexc_compile_options>();
    const auto pointer = static_cast<std::uint32_t>(offsetof(flexc_compile_options, buffers));
    for (const std::uint32_t size : {0u, 3u, pointer + 4, 0xffffffffu}) {
        options.struct_size = size;
        CHECK(flexc_check("score", &options, &signature, failure.out()) ==
              FLEXC_ERROR_INVALID_OPTION);
        CHECK(failure.says("struct_size"));
    }

    // What is filled in stays inside the caller's struct.
    REQUIRE(flexc_check("score", nullptr, &signature, failure.out()) == FLEXC_OK);
    auto info = sized<flexc_signature_info>();
    info.struct_size = offsetof(flexc_signature_info, score_depends_on);
    REQUIRE(flexc_signature_get(signature, &info, failure.out()) == FLEXC_OK);
    CHECK(info.score_depends_on == nullptr);
    CHECK(info.struct_size == offsetof(flexc_signature_info, score_depends_on));
    flexc_signature_free(signature);
}

TEST_CASE("C: what cannot be accepted is named") {
    Failure failure;
    flexc_signature* signature = nullptr;
    CHECK(flexc_check(nullptr, nullptr, &signature, failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    CHECK(flexc_check("score", nullptr, nullptr, failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    const auto refuses = [&](auto change, const char* text) {
        auto options = sized<flexc_compile_options>();
        change(options);
        CHECK(flexc_check("score", &options, &signature, failure.out()) ==
              FLEXC_ERROR_INVALID_OPTION);
        CAPTURE(failure.message());
        CHECK(failure.says(text));
    };
    refuses([](auto& o) { o.dtype = 99; }, "dtype 99");
    refuses([](auto& o) { o.dtype = -1; }, "dtype -1");
    refuses([](auto& o) { o.device = 3; }, "device");
    refuses([](auto& o) { o.forward_kernel = 7; }, "forward_kernel");
    refuses([](auto& o) { o.gradient_type = 2; }, "gradient_type");
    refuses([](auto& o) { o.backward_kernel = 7; }, "backward_kernel");
    refuses([](auto& o) { o.mask_tiles = 3; }, "mask_tiles");
    refuses([](auto& o) { o.head_dim = -4; }, "head");
    refuses([](auto& o) { o.buffer_count = 1; }, "buffers is NULL");
    auto nameless = sized<flexc_buffer_declaration>();
    refuses(
        [&](auto& o) {
            o.buffers = &nameless;
            o.buffer_count = 1;
        },
        "no name");
    nameless.name = "t";
    nameless.dim_count = 2;
    refuses(
        [&](auto& o) {
            o.buffers = &nameless;
            o.buffer_count = 1;
        },
        "dims is NULL");
    auto info = sized<flexc_kernel_info>();
    CHECK(flexc_kernel_get(nullptr, &info, failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    CHECK(flexc_plan_workspace_bytes(nullptr) == 0);
    CHECK(flexc_plan_block_mask_bytes(nullptr) == 0);
    flexc_kernel_free(nullptr);
    flexc_plan_free(nullptr);
    flexc_signature_free(nullptr);
    flexc_error_free(nullptr);
}

#if FLEXC_WITH_CPU
TEST_CASE("C: forward and backward with a captured gradient, against the C++ API") {
    Failure failure;
    const char* dims[] = {"KV_LEN"};
    auto declaration = sized<flexc_buffer_declaration>();
    declaration.name = "bias";
    declaration.dims = dims;
    declaration.dim_count = 1;
    declaration.grad = 1;
    auto options = cpu_options();
    options.buffers = &declaration;
    options.buffer_count = 1;
    std::string heard;
    options.log = [](void* user, int32_t, const char* text, size_t length) {
        static_cast<std::string*>(user)->append(text, length);
    };
    options.log_user = &heard;
    flexc_kernel* kernel = nullptr;
    const auto status = flexc_compile("score + bias[kv_idx]", &options, &kernel, failure.out());
    CAPTURE(failure.message());
    REQUIRE(status == FLEXC_OK);
    CHECK_FALSE(heard.empty());

    auto info = sized<flexc_kernel_info>();
    REQUIRE(flexc_kernel_get(kernel, &info, failure.out()) == FLEXC_OK);
    CHECK(info.device == FLEXC_DEVICE_CPU);
    CHECK(info.from_cache == 0);
    REQUIRE(info.function_count > 0);
    auto function = sized<flexc_function_info>();
    REQUIRE(flexc_kernel_function(kernel, 0, &function, failure.out()) == FLEXC_OK);
    CHECK(std::strlen(function.name) > 0);
    CHECK(flexc_kernel_function(kernel, info.function_count, &function, failure.out()) ==
          FLEXC_ERROR_INVALID_OPTION);

    // Three keys whose scores are their biases alone, as q is zero: the softmax of the biases.
    std::vector<float> q(4, 0), k(12, 1), v = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0};
    std::vector<float> bias = {0.0f, 0.5f, -1.0f}, o(4), lse(1), d_out = {1, 0, 0, 0};
    std::vector<float> dq(4), dk(12), dv(12), d_bias(3);
    auto t_bias = tensor(bias, {3}), t_d_bias = tensor(d_bias, {3});
    auto named = sized<flexc_named_tensor>();
    named.name = "bias";
    named.tensor = &t_bias;
    auto gradient = named;
    gradient.tensor = &t_d_bias;

    auto sizes = sized<flexc_sizes>();
    flexc_plan* plan = nullptr;
    CHECK(flexc_plan_create(kernel, &sizes, &named, 1, nullptr, nullptr, &plan, failure.out()) !=
          FLEXC_OK); // no size is given
    CHECK(plan == nullptr);
    sizes.batch = sizes.heads = sizes.kv_heads = sizes.q_len = 1;
    sizes.kv_len = 3;
    REQUIRE(flexc_plan_create(kernel, &sizes, &named, 1, nullptr, nullptr, &plan, failure.out()) ==
            FLEXC_OK);
    std::vector<unsigned char> memory(flexc_plan_workspace_bytes(plan) + 256);
    auto workspace = sized<flexc_workspace>();
    workspace.data =
        memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
    workspace.bytes = flexc_plan_workspace_bytes(plan);

    auto tq = tensor(q, {1, 1, 1, 4}), tk = tensor(k, {1, 1, 3, 4}), tv = tensor(v, {1, 1, 3, 4});
    auto to = tensor(o, {1, 1, 1, 4}), tl = tensor(lse, {1, 1, 1});
    auto td = tensor(d_out, {1, 1, 1, 4}), tdq = tensor(dq, {1, 1, 1, 4});
    auto tdk = tensor(dk, {1, 1, 3, 4}), tdv = tensor(dv, {1, 1, 3, 4});
    auto forward = sized<flexc_forward_tensors>();
    forward.q = &tq;
    forward.k = &tk;
    forward.v = &tv;
    forward.o = &to;
    forward.lse = &tl;
    REQUIRE(flexc_forward(kernel, plan, &forward, &named, 1, &workspace, nullptr, failure.out()) ==
            FLEXC_OK);
    const double sum = 1.0 + std::exp(0.5) + std::exp(-1.0);
    const std::array<double, 3> p = {1.0 / sum, std::exp(0.5) / sum, std::exp(-1.0) / sum};
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(o[i] == doctest::Approx(p[i]).epsilon(1e-5));
    CHECK(lse[0] == doctest::Approx(std::log(sum)).epsilon(1e-5));

    // The same values through strides: v transposed in memory.
    std::vector<float> v_transposed(12), o_strided(4);
    for (std::size_t row = 0; row < 3; ++row)
        for (std::size_t column = 0; column < 4; ++column)
            v_transposed[column * 3 + row] = v[row * 4 + column];
    auto tvt = tensor(v_transposed, {1, 1, 3, 4}), tos = tensor(o_strided, {1, 1, 1, 4});
    tvt.has_strides = 1;
    const std::array<std::int64_t, 4> strides = {12, 12, 1, 3};
    std::copy(strides.begin(), strides.end(), tvt.strides);
    auto strided = forward;
    strided.v = &tvt;
    strided.o = &tos;
    REQUIRE(flexc_forward(kernel, plan, &strided, &named, 1, &workspace, nullptr, failure.out()) ==
            FLEXC_OK);
    CHECK(o_strided == o);

    auto backward = sized<flexc_backward_tensors>();
    backward.q = &tq;
    backward.k = &tk;
    backward.v = &tv;
    backward.o = &to;
    backward.lse = &tl;
    backward.d_out = &td;
    backward.dq = &tdq;
    backward.dk = &tdk;
    backward.dv = &tdv;
    REQUIRE(flexc_backward(kernel, plan, &backward, &named, 1, &gradient, 1, &workspace, nullptr,
                           failure.out()) == FLEXC_OK);
    // d p0 / d bias_i
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(d_bias[i] == doctest::Approx(p[0] * ((i == 0 ? 1.0 : 0.0) - p[i])).epsilon(1e-5));
    for (std::size_t i = 0; i < 3; ++i)
        CHECK(dv[i * 4] == doctest::Approx(p[i]).epsilon(1e-5));

    CHECK(flexc_backward(kernel, plan, &backward, &named, 1, nullptr, 1, &workspace, nullptr,
                         failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    forward.k = nullptr;
    CHECK(flexc_forward(kernel, plan, &forward, &named, 1, &workspace, nullptr, failure.out()) ==
          FLEXC_ERROR_INVALID_OPTION);
    flexc_plan_free(plan);
    flexc_kernel_free(kernel);
}

TEST_CASE("C: params and scale are run-time values, and a plan outlives its kernel") {
    Failure failure;
    auto options = cpu_options();
    flexc_kernel* kernel = nullptr;
    REQUIRE(
        flexc_compile("param bonus: f32 = 0.0\nscore_mod = score + where(kv_idx == 0, bonus, 0.0)",
                      &options, &kernel, failure.out()) == FLEXC_OK);
    auto sizes = sized<flexc_sizes>();
    sizes.batch = sizes.heads = sizes.kv_heads = sizes.q_len = 1;
    sizes.kv_len = 2;
    auto bonus = sized<flexc_param_value>();
    bonus.name = "bonus";
    bonus.value = std::log(3.0);
    auto plan_options = sized<flexc_plan_options>();
    plan_options.params = &bonus;
    plan_options.param_count = 1;
    plan_options.has_scale = 1;
    plan_options.scale = 0.0;
    flexc_plan* plan = nullptr;
    REQUIRE(flexc_plan_create(kernel, &sizes, nullptr, 0, nullptr, &plan_options, &plan,
                              failure.out()) == FLEXC_OK);
    std::vector<float> q(4, 5), k = {1, 2, 3, 4, 5, 6, 7, 8}, v = {1, 1, 1, 1, 0, 0, 0, 0}, o(4);
    auto tq = tensor(q, {1, 1, 1, 4}), tk = tensor(k, {1, 1, 2, 4}), tv = tensor(v, {1, 1, 2, 4});
    auto to = tensor(o, {1, 1, 1, 4});
    auto forward = sized<flexc_forward_tensors>();
    forward.q = &tq;
    forward.k = &tk;
    forward.v = &tv;
    forward.o = &to;
    std::vector<unsigned char> memory(flexc_plan_workspace_bytes(plan) + 256);
    auto workspace = sized<flexc_workspace>();
    workspace.data =
        memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
    workspace.bytes = flexc_plan_workspace_bytes(plan);
    CHECK(flexc_forward(kernel, plan, &forward, nullptr, 0, &workspace, nullptr, failure.out()) ==
          FLEXC_OK);
    CHECK(o[0] == doctest::Approx(0.75)); // e^log 3 : 1, and no q . k as the scale is zero
    bonus.name = "malus";
    flexc_plan* none = nullptr;
    CHECK(flexc_plan_create(kernel, &sizes, nullptr, 0, nullptr, &plan_options, &none,
                            failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    CHECK(failure.says("malus"));
    flexc_kernel_free(kernel);
    CHECK(flexc_plan_workspace_bytes(plan) == workspace.bytes);
    flexc_plan_free(plan);
}

TEST_CASE("C: where the tiles of a prefix come from") {
    Failure failure;
    const auto block_mask_bytes = [&](std::int32_t tiles) {
        auto options = cpu_options();
        options.mask_tiles = tiles;
        flexc_kernel* kernel = nullptr;
        REQUIRE(flexc_compile("mask_mod = kv_idx < 100 or q_idx >= kv_idx", &options, &kernel,
                              failure.out()) == FLEXC_OK);
        auto sizes = sized<flexc_sizes>();
        sizes.batch = sizes.heads = sizes.kv_heads = 1;
        sizes.q_len = sizes.kv_len = 500;
        flexc_plan* plan = nullptr;
        REQUIRE(flexc_plan_create(kernel, &sizes, nullptr, 0, nullptr, nullptr, &plan,
                                  failure.out()) == FLEXC_OK);
        flexc_kernel_free(kernel);
        const std::size_t bytes = flexc_plan_block_mask_bytes(plan);
        flexc_plan_free(plan);
        return bytes;
    };
    CHECK(block_mask_bytes(FLEXC_MASK_TILES_AUTOMATIC) == 0);
    CHECK(block_mask_bytes(FLEXC_MASK_TILES_RANGES) == 0);
    CHECK(block_mask_bytes(FLEXC_MASK_TILES_BLOCK_MASK) > 0);
}

TEST_CASE("C: what a plan is told of later calls") {
    Failure failure;
    auto options = cpu_options();
    flexc_kernel* kernel = nullptr;
    REQUIRE(flexc_compile("buffer doc: f32[N]\nmask_mod = doc[q_idx] == doc[kv_idx]", &options,
                          &kernel, failure.out()) == FLEXC_OK);
    constexpr std::int64_t kRows = 300;
    auto sizes = sized<flexc_sizes>();
    sizes.batch = sizes.heads = sizes.kv_heads = 1;
    sizes.q_len = sizes.kv_len = kRows;
    std::vector<float> documents(kRows);
    std::vector<float> q(4 * kRows), o(4 * kRows);
    auto doc = tensor(documents, {kRows});
    auto named = sized<flexc_named_tensor>();
    named.name = "doc";
    named.tensor = &doc;
    auto rows = tensor(q, {1, 1, kRows, 4}), out = tensor(o, {1, 1, kRows, 4});
    auto like = sized<flexc_forward_tensors>(); // its q alone: the others are as usual
    like.q = &rows;
    auto plan_options = sized<flexc_plan_options>();
    plan_options.forward = &like;
    plan_options.block_mask_per_call = 1;
    flexc_plan* plan = nullptr;
    REQUIRE(flexc_plan_create(kernel, &sizes, &named, 1, nullptr, &plan_options, &plan,
                              failure.out()) == FLEXC_OK);

    // Of the documents that the call has: row i has the mean of its own.
    for (std::size_t i = 0; i < documents.size(); ++i) {
        documents[i] = i < 100 ? 0.0F : 1.0F;
        q[4 * i] = i < 100 ? 2.0F : 6.0F;
    }
    auto forward = sized<flexc_forward_tensors>();
    forward.q = forward.k = forward.v = &rows;
    forward.o = &out;
    std::vector<unsigned char> memory(flexc_plan_workspace_bytes(plan) + 256);
    auto workspace = sized<flexc_workspace>();
    workspace.data =
        memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
    workspace.bytes = flexc_plan_workspace_bytes(plan);
    REQUIRE(flexc_forward(kernel, plan, &forward, &named, 1, &workspace, nullptr, failure.out()) ==
            FLEXC_OK);
    CHECK(o[0] == doctest::Approx(2));
    CHECK(o[4 * 299] == doctest::Approx(6));
    flexc_plan_free(plan);

    auto shorter = tensor(q, {1, 1, kRows - 1, 4});
    like.q = &shorter;
    flexc_plan* none = nullptr;
    CHECK(flexc_plan_create(kernel, &sizes, &named, 1, nullptr, &plan_options, &none,
                            failure.out()) == FLEXC_ERROR_INVALID_OPTION);
    CHECK(failure.says("q: expected shape"));
    flexc_kernel_free(kernel);
}
#endif
