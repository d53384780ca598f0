#include "flexc/visible_fraction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <regex>

#include "support/text.h"

namespace flexc::cli {
namespace {

constexpr double kMostPairsCuda = 0x1p38, kMostPairsCpu = 0x1p28;
constexpr std::int64_t kSampleRows = 64;

struct Counted {
    double visible = 0, pairs = 0;
};

// Rows [first, first + rows) of every head.
Counted count_rows(const Kernel& kernel, const ModText& mod, const ProblemShape& shape,
                   std::int64_t first, std::int64_t rows,
                   const std::function<void(AttentionCall&)>& add_buffers) {
    auto part = shape;
    part.sizes.q_len = rows;
    AttentionCall call(
        kernel, part,
        {.params = mod.param_values, .q_offset = first, .global_q_len = shape.sizes.q_len});
    for (const char* tensor : {"q", "k", "v"}) {
        call.set(tensor, {});
    }
    add_buffers(call);
    call.prepare(false);
    if (auto done = call.forward(); !done) {
        throw std::runtime_error(done.error().message);
    }
    call.synchronize();
    Counted counted;
    counted.pairs = static_cast<double>(part.sizes.batch * part.sizes.heads * rows) *
                    static_cast<double>(part.sizes.kv_len);
    for (const auto& tensor : call.outputs()) {
        if (tensor.name != "lse") {
            continue;
        }
        std::vector<float> log_sums(static_cast<std::size_t>(tensor.view.elements()));
        const auto done = tensor.memory.download(log_sums.data(), log_sums.size() * sizeof(float));
        if (!done) {
            throw std::runtime_error(done.error().message);
        }
        for (const float log_sum : log_sums) {
            counted.visible += std::round(std::exp(static_cast<double>(log_sum)));
        }
    }
    return counted;
}

bool is_bare_expression(const std::string& text) {
    return !std::regex_search(text, std::regex("(^|[\\n;}])\\s*(score_mod|mask_mod|def)\\b"));
}

} // namespace

std::string without_score_mod(const std::string& text) {
    static const std::regex kDefinition("(^|[\\n;}])([ \\t]*)score_mod\\s*(=|\\{)");
    return std::regex_replace(text, kDefinition, "$1$2fn unused_score_mod() $3");
}

VisibleFraction visible_fraction(const ModText& mod, const Signature& signature,
                                 const ProblemShape& shape, Device device,
                                 const std::function<void(AttentionCall&)>& add_buffers) {
    auto counting = shape;
    counting.head_dim = counting.head_dim_v = 1;
    counting.dtype = DType::f32;
    auto options = mod.options;
    options.dtype = counting.dtype;
    options.head_dim = options.head_dim_v = 1;
    options.device = device;
    options.backward = false;
    options.forward_kernel = ForwardKernel::automatic;
    options.schedule.clear();
    options.log = {};
    auto text = without_score_mod(mod.text);
    if (is_bare_expression(text) && !mod.options.mask_mod.empty()) {
        text = "score_mod = score";
    }
    auto kernel = compile(text, options);
    if (!kernel) {
        return {std::nullopt, "the mask alone did not compile"};
    }

    const auto rows = shape.sizes.q_len;
    const double pairs = static_cast<double>(shape.sizes.batch * shape.sizes.heads * rows) *
                         static_cast<double>(shape.sizes.kv_len);
    const double most = device.kind == Device::Kind::cuda ? kMostPairsCuda : kMostPairsCpu;
    try {
        if (signature.mask_depends_on.empty()) {
            const auto counted = count_rows(*kernel, mod, counting, 0, 1, add_buffers);
            return {counted.visible / counted.pairs, "the mask is constant"};
        }
        if (pairs <= most || rows <= kSampleRows) {
            const auto counted = count_rows(*kernel, mod, counting, 0, rows, add_buffers);
            return {counted.visible / counted.pairs, "counted exactly"};
        }
        Counted sum;
        constexpr int kBlocks = 16;
        constexpr auto kBlockRows = kSampleRows / kBlocks;
        for (int block = 0; block < kBlocks; ++block) {
            // Around the middle of each sixteenth: exact where the count is linear in the row.
            const auto first = (2 * block + 1) * rows / (2 * kBlocks) - kBlockRows / 2;
            const auto part = count_rows(*kernel, mod, counting, first, kBlockRows, add_buffers);
            sum.visible += part.visible;
            sum.pairs += part.pairs;
        }
        return {sum.visible / sum.pairs,
                formatted("estimated from {} evenly spaced rows of {}", kSampleRows, rows)};
    } catch (const std::exception& error) {
        return {std::nullopt, error.what()};
    }
}

} // namespace flexc::cli
