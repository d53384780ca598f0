// Tiles of Hopper's forward kernel.
#include <algorithm>
#include <array>

#include "cuda/select.h"

namespace flexc::cuda {
namespace {

// Best first, but for turns. Three warpgroups share each load of keys where the output leaves them
// registers.
constexpr std::array kShapes = {
    ForwardSchedule{3, 128, 2, true}, ForwardSchedule{3, 112, 2, true},
    ForwardSchedule{3, 96, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 1, true},
    ForwardSchedule{2, 96, 1, true},  ForwardSchedule{2, 80, 1, true},
    ForwardSchedule{2, 64, 1, true},  ForwardSchedule{2, 48, 1, true},
    ForwardSchedule{2, 64, 1, false},
};
constexpr int kStages = 2;
constexpr int kBarrierBytes = 1024;
constexpr int kLeastStep = 16; // keys by which the next smaller configuration is smaller

int panels(int columns) { return (columns + 63) / 64; }
int padded(int columns) { return (columns + 15) / 16 * 16; }

// The layout at the top of forward_sm90.cu.
int shared_bytes(const KernelRequest& request, const ForwardSchedule& shape) {
    constexpr int kRowBytes = 128; // of a panel
    const int key = panels(request.head_dim), value = panels(request.head_dim_v);
    const int query_tile = 64 * shape.consumers;
    const int bias_row_bytes = (shape.key_tile + 8) * request.bias_bytes;
    return kBarrierBytes + kStages * query_tile * bias_row_bytes +
           kRowBytes * (shape.query_stages * query_tile * std::max(key, value) +
                        kStages * shape.key_tile * (key + value));
}

// Of one thread: scores, their biases, the weights before them, and the output.
int accumulators(const KernelRequest& request, const ForwardSchedule& shape) {
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    const int biases = shape.key_tile / 2 * request.bias_bytes / 4;
    return shape.key_tile / 2 + biases + weights + padded(request.head_dim_v) / 2;
}
int accumulator_limit(const KernelRequest& request, const ForwardSchedule& shape) {
    if (shape.consumers == 3) return 128;
    return request.bias_bytes > 0 ? 188 : 192;
}

bool is_wide(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > 128;
}

bool suits(const KernelRequest& request, const ForwardSchedule& shape) {
    // Beyond these, masks and mods spill or products are serialised. 64 keys are as fast there.
    constexpr int kWidestOfThree = 96, kWidestOfManyKeys = 224, kFewKeys = 64;
    const int columns = padded(request.head_dim_v);
    if (shape.consumers == 3 && columns > kWidestOfThree) return false;
    if (shape.key_tile > kFewKeys && columns > kWidestOfManyKeys) return false;
    if (request.bias_bytes > 0 && shape.consumers == 3) return false;
    return accumulators(request, shape) <= accumulator_limit(request, shape) &&
           shared_bytes(request, shape) <= shared_memory_limit(request.arch);
}

// Measured on an H200. Wide heads multiply most of the time and mods lengthen the softmax, so that
// turns at products suffice.
ForwardSchedule with_turns(const KernelRequest& request, ForwardSchedule schedule) {
    const bool wide = is_wide(request), narrow = schedule.consumers == 3;
    schedule.turns = wide || request.has_score_mod ? Turns::products : Turns::softmax;
    schedule.settles_after = wide || (narrow && !request.has_score_mod) ? 0
                             : request.has_score_mod                    ? 8
                                                                        : 4;
    return schedule;
}

KernelConfig configured(const KernelRequest& request, const ForwardSchedule& schedule) {
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    config.query_tile = 64 * schedule.consumers;
    config.key_tile = schedule.key_tile;
    config.warps = 4 * (schedule.consumers + 1);
    config.stages = kStages;
    config.shared_bytes = shared_bytes(request, schedule);
    config.hopper =
        HopperForward{.schedule = schedule,
                      .has_registers_for_columns =
                          schedule.consumers == 2 && !is_wide(request) &&
                          accumulators(request, schedule) + schedule.key_tile / 4 <= 192};
    config.has_next = true; // the generic kernel is the last
    config.reason = "wgmma, " + std::to_string(schedule.consumers) + " warpgroups of 64 rows, " +
                    (schedule.overlaps ? "products under the softmax" : "products in order");
    return config;
}

// A stage of queries more or less needs the same registers.
bool needs_fewer_registers(const ForwardSchedule& shape, const ForwardSchedule& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
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

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request) {
    constexpr std::size_t kSizes = 4; // of tiles: smaller ones only save registers
    std::vector<ForwardSchedule> schedules;
    if (!why_not_sm90(request).empty()) return schedules;
    std::size_t sizes = 0;
    for (const ForwardSchedule& shape : kShapes) {
        if (!suits(request, shape) || sizes == kSizes) continue;
        if (sizes++ == 0) schedules.push_back(with_turns(request, shape));
        for (const Turns turns : {Turns::softmax, Turns::products, Turns::none})
            for (const int columns : {0, 4, 8}) {
                ForwardSchedule schedule = shape;
                schedule.turns = turns;
                schedule.settles_after = columns;
                if (schedule != schedules.front()) schedules.push_back(schedule);
            }
    }
    return schedules;
}

std::optional<KernelConfig> select_forward_sm90(const KernelRequest& request) {
    if (!why_not_sm90(request).empty()) return {};
    if (request.schedule) {
        KernelConfig config = configured(request, *request.schedule);
        config.has_next = false;
        config.reason += "; asked for";
        return config;
    }
    // The best, one that is a step smaller, and the smallest: each costs a compile.
    std::array<const ForwardSchedule*, 3> choices{};
    std::size_t count = 0;
    for (const ForwardSchedule& shape : kShapes) {
        if (!suits(request, shape)) continue;
        if (count > 0 && !needs_fewer_registers(shape, *choices[count - 1])) continue;
        count = std::min(count + 1, choices.size());
        choices[count - 1] = &shape;
    }
    const auto refused = static_cast<std::size_t>(request.refused);
    if (refused >= count) return {};
    KernelConfig config = configured(request, with_turns(request, *choices[refused]));
    if (refused > 0) config.reason += "; larger tiles spilled registers or serialised products";
    return config;
}

} // namespace flexc::cuda
