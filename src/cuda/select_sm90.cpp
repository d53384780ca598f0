// Tiles of Hopper's forward kernel.
#include <algorithm>
#include <array>
#include <vector>

#include "cuda/select.h"

namespace flexc::cuda {
namespace {

struct Shape {
    int consumers, key_tile, query_stages;
    bool overlaps;
};

// Best first. Three warpgroups share each load of keys where the output leaves them registers.
constexpr std::array kShapes = {
    Shape{3, 128, 2, true}, Shape{3, 112, 2, true}, Shape{3, 96, 2, true},  Shape{2, 128, 2, true},
    Shape{2, 128, 1, true}, Shape{2, 112, 1, true}, Shape{2, 96, 1, true},  Shape{2, 80, 1, true},
    Shape{2, 64, 1, true},  Shape{2, 48, 1, true},  Shape{2, 64, 1, false},
};
constexpr int kStages = 2;
constexpr int kBarrierBytes = 1024;
constexpr int kLeastStep = 16; // keys by which the next smaller configuration is smaller

int panels(int columns) { return (columns + 63) / 64; }
int padded(int columns) { return (columns + 15) / 16 * 16; }

// The layout at the top of forward_sm90.cu.
int shared_bytes(const KernelRequest& request, const Shape& shape) {
    constexpr int kRowBytes = 128; // of a panel
    const int key = panels(request.head_dim), value = panels(request.head_dim_v);
    const int query_tile = 64 * shape.consumers;
    const int bias_row_bytes = (shape.key_tile + 8) * request.bias_bytes;
    return kBarrierBytes + kStages * query_tile * bias_row_bytes +
           kRowBytes * (shape.query_stages * query_tile * std::max(key, value) +
                        kStages * shape.key_tile * (key + value));
}

// Of one thread: scores, their biases, the weights before them, and the output.
int accumulators(const KernelRequest& request, const Shape& shape) {
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    const int biases = shape.key_tile / 2 * request.bias_bytes / 4;
    return shape.key_tile / 2 + biases + weights + padded(request.head_dim_v) / 2;
}
int accumulator_limit(const KernelRequest& request, const Shape& shape) {
    if (shape.consumers == 3) return 128;
    return request.bias_bytes > 0 ? 188 : 192;
}

bool suits(const KernelRequest& request, const Shape& shape) {
    // Beyond these, masks and mods spill or products are serialised. 64 keys are as fast there.
    constexpr int kWidestOfThree = 96, kWidestOfManyKeys = 224, kFewKeys = 64;
    const int columns = padded(request.head_dim_v);
    if (shape.consumers == 3 && columns > kWidestOfThree) return false;
    if (shape.key_tile > kFewKeys && columns > kWidestOfManyKeys) return false;
    if (request.bias_bytes > 0 && shape.consumers == 3) return false;
    return accumulators(request, shape) <= accumulator_limit(request, shape) &&
           shared_bytes(request, shape) <= shared_memory_limit(request.arch);
}

KernelConfig configured(const KernelRequest& request, const Shape& shape) {
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    config.query_tile = 64 * shape.consumers;
    config.key_tile = shape.key_tile;
    config.warps = 4 * (shape.consumers + 1);
    config.stages = kStages;
    config.shared_bytes = shared_bytes(request, shape);
    HopperForward hopper;
    hopper.query_stages = shape.query_stages;
    hopper.overlaps = shape.overlaps;
    // Measured on an H200. Wide heads multiply most of the time and mods lengthen the softmax, so
    // that turns at products suffice.
    const bool wide = std::max(request.head_dim, request.head_dim_v) > 128;
    hopper.turns = wide || request.has_score_mod ? Turns::products : Turns::softmax;
    const bool narrow = shape.consumers == 3;
    hopper.settles_after = wide || (narrow && !request.has_score_mod) ? 0
                           : request.has_score_mod                    ? 8
                                                                      : 4;
    hopper.has_registers_for_columns =
        shape.consumers == 2 && !wide && accumulators(request, shape) + shape.key_tile / 4 <= 192;
    config.hopper = hopper;
    config.has_next = true; // the generic kernel is the last
    config.reason = "wgmma, " + std::to_string(shape.consumers) + " warpgroups of 64 rows, " +
                    (shape.overlaps ? "products under the softmax" : "products in order");
    return config;
}

// A stage of queries more or less needs the same registers.
bool needs_fewer_registers(const Shape& shape, const Shape& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
}

// Whether a kernel that does not fit with three warpgroups is tried with as many keys and two, before
// the smallest. Documents at a head dim of 64 are one. It has not been timed yet.
constexpr bool kTriesTwoWarpgroups = false;

// The best, one that is a step smaller, and the smallest: each costs a compile.
std::vector<Shape> choices(const KernelRequest& request) {
    std::vector<Shape> steps; // each needs fewer registers than the one before
    for (const Shape& shape : kShapes)
        if (suits(request, shape) &&
            (steps.empty() || needs_fewer_registers(shape, steps.back())))
            steps.push_back(shape);
    constexpr std::size_t kStepsKept = 2;
    if (steps.size() <= kStepsKept) return steps;
    std::vector<Shape> result(steps.begin(), steps.begin() + kStepsKept);
    if (kTriesTwoWarpgroups && result.back().consumers == 3)
        for (std::size_t i = kStepsKept; i + 1 < steps.size(); ++i)
            if (steps[i].consumers == 2) {
                result.push_back(steps[i]);
                break;
            }
    result.push_back(steps.back());
    return result;
}

} // namespace

std::string_view why_not_sm90(const KernelRequest& request) {
    if (request.arch != 90) return "only Hopper has wgmma";
    if (request.generic) return "a kernel for tensors of any layout was asked for";
    if (request.dtype == DType::f32) return "wgmma has no products of floats";
    if (request.head_dim % 8 != 0 || request.head_dim_v % 8 != 0)
        return "the copy engine needs rows of a multiple of 16 bytes";
    if (request.reports_out_of_range) return "reads outside buffers are reported";
    return "";
}

std::optional<KernelConfig> select_forward_sm90(const KernelRequest& request) {
    if (!why_not_sm90(request).empty()) return {};
    const std::vector<Shape> shapes = choices(request);
    const auto refused = static_cast<std::size_t>(request.refused);
    if (refused >= shapes.size()) return {};
    KernelConfig config = configured(request, shapes[refused]);
    if (refused > 0) config.reason += "; larger tiles spilled registers or serialised products";
    return config;
}

} // namespace flexc::cuda
