// Tiles of Hopper's forward kernel.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "cuda/select.h"

namespace flexc::cuda {
namespace {

// Best first, but for turns. Three warpgroups share each load of keys where the output leaves them
// registers.
constexpr std::array kForwardShapes = {
    ForwardSchedule{3, 128, 2, true}, ForwardSchedule{3, 112, 2, true},
    ForwardSchedule{3, 96, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 1, true},
    ForwardSchedule{2, 96, 1, true},  ForwardSchedule{2, 80, 1, true},
    ForwardSchedule{2, 64, 1, true},  ForwardSchedule{2, 48, 1, true},
    ForwardSchedule{2, 64, 1, false}, ForwardSchedule{2, 48, 1, false},
};
// For keys as a grid. What repeats from row to row leaves three warpgroups registers for short
// tiles.
constexpr std::array kGridShapes = {
    ForwardSchedule{3, 64, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 2, true},
    ForwardSchedule{2, 112, 1, true}, ForwardSchedule{2, 96, 1, true},
    ForwardSchedule{2, 80, 1, true},  ForwardSchedule{2, 64, 1, true},
    ForwardSchedule{2, 48, 1, true},
};
constexpr int kForwardStages = 2;
constexpr int kBarrierBytes = 1024;
constexpr int kOperandBytes = 16;   // of what is added for a query and a row of the grid
constexpr int kOperandReach = 1024; // and past the last, see kGridRowsReach on the device
constexpr int kLeastStep = 16;      // keys by which the next smaller configuration is smaller

// Slices of what was expanded, as in sm90/forward_terms.cuh.
int term_bytes(const ExpandedValues& expanded, const ForwardSchedule& shape) {
    const int distances = 64 * shape.consumers + shape.key_tile;
    const int gap = distances % 32 == 0 ? 16 : 0;
    return 4 * (expanded.keys * shape.key_tile + expanded.distances * (2 * distances + gap));
}

const ExpandedValues& expanded_of(const KernelRequest& request, bool by_grid) {
    return by_grid ? request.grid_expanded : request.expanded;
}

// Whether what is added for a row of the grid comes with the products: where tiles are single rows,
// so that an infinite number meets no zero, and numbers of 16 bits are as large as floats.
bool multiplies_grid_rows(const KernelRequest& request, const ForwardSchedule& shape,
                          bool by_grid) {
    const KeyGrid& grid = request.key_grid;
    return by_grid && grid.quotients && grid.adds_to_products && shape.key_tile == grid.width &&
           request.dtype == DType::bf16;
}

// The layout at the top of forward_sm90.cu.
int shared_bytes(const KernelRequest& request, const ForwardSchedule& shape, bool by_grid) {
    constexpr int kRowBytes = 128; // of a panel
    const int key = panels(request.head_dim), value = panels(request.head_dim_v);
    const int query_tile = 64 * shape.consumers;
    const int bias_bytes = shape.key_tile * request.bias_bytes;
    const int bias_row_bytes =
        bias_bytes + (bias_bytes % kRowBytes == 0 ? 0 : 8 * request.bias_bytes);
    const KeyGrid& grid = request.key_grid;
    const int grid_rows = by_grid && grid.quotients ? shape.key_tile / grid.width : 0;
    const bool multiplies = multiplies_grid_rows(request, shape, by_grid);
    const int grid_bytes = grid_rows * (multiplies ? kOperandBytes : 4);
    return kBarrierBytes + (multiplies ? kOperandReach : 0) +
           kForwardStages * query_tile * (bias_row_bytes + grid_bytes) +
           kForwardStages * term_bytes(expanded_of(request, by_grid), shape) +
           kRowBytes * (shape.query_stages * query_tile * std::max(key, value) +
                        kForwardStages * shape.key_tile * (key + value));
}

// Of one thread: scores, their biases, the weights before them, and the output.
int accumulators(const KernelRequest& request, const ForwardSchedule& shape) {
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    const int biases = shape.key_tile / 2 * request.bias_bytes / 4;
    return shape.key_tile / 2 + biases + weights + padded_columns(request.head_dim_v) / 2;
}
int accumulator_limit(const KernelRequest& request, const ForwardSchedule& shape) {
    if (shape.consumers == 3) return 128;
    return request.bias_bytes > 2 ? 180 : 192;
}

bool is_wide(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > 128;
}

bool suits(const KernelRequest& request, const ForwardSchedule& shape, bool by_grid) {
    // Beyond this, masks and mods spill or products are serialised.
    constexpr int kWidestOfThree = 96;
    if (shape.consumers == 3 && padded_columns(request.head_dim_v) > kWidestOfThree) return false;
    if (request.bias_bytes > 0 && shape.consumers == 3) return false;
    return accumulators(request, shape) <= accumulator_limit(request, shape) &&
           shared_bytes(request, shape, by_grid) <= shared_memory_limit(request.arch);
}

// Whether flexc chooses it by itself. Tiles of three warpgroups visit more where a map has shapes
// of its own, and leave too few registers for looking at what is hidden.
bool is_chosen(const KernelRequest& request, const ForwardSchedule& shape, bool by_grid) {
    return suits(request, shape, by_grid) && (!request.has_map || shape.consumers != 3);
}

// Whether each tile is whole rows of the grid of keys.
bool fits_grid(const KernelRequest& request, const ForwardSchedule& shape) {
    const int width = request.key_grid.width;
    return width > 0 && shape.key_tile % width == 0 && shape.key_tile % 16 == 0;
}
bool suits_grid(const KernelRequest& request, const ForwardSchedule& shape) {
    const KeyGrid& grid = request.key_grid;
    if (!fits_grid(request, shape)) return false;
    // Of one thread: a number for each row of the grid and query, and what repeats.
    const int rows = grid.quotients ? 2 * shape.key_tile / grid.width : 0;
    const int period = grid.remainders ? std::lcm(grid.width, 8) / 2 : 0;
    return suits(request, shape, true) &&
           accumulators(request, shape) + rows + period <= accumulator_limit(request, shape);
}

// Measured on an H200; without score mods with rests between loads. What is read for each element
// is read in a warpgroup's turn.
ForwardSchedule with_turns(const KernelRequest& request, ForwardSchedule schedule, bool by_grid) {
    const bool wide = is_wide(request), narrow = schedule.consumers == 3;
    const bool adds_terms = request.expanded.any() && !narrow;
    const bool multiplies_little = !narrow && !request.has_score_mod && request.head_dim_v <= 64;
    schedule.turns = !wide && (adds_terms || multiplies_little) ? Turns::softmax : Turns::products;
    const bool settles_first = wide || (narrow && (by_grid || !request.has_score_mod));
    schedule.settles_after = settles_first ? 0 : by_grid || adds_terms ? 4 : 8;
    return schedule;
}

KernelConfig configured(const KernelRequest& request, const ForwardSchedule& schedule,
                        bool by_grid) {
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    config.query_tile = 64 * schedule.consumers;
    config.key_tile = schedule.key_tile;
    config.warps = 4 * (schedule.consumers + 1);
    config.stages = kForwardStages;
    const ExpandedValues& expanded = expanded_of(request, by_grid);
    config.shared_bytes = shared_bytes(request, schedule, by_grid);
    config.hopper = HopperForward{
        .schedule = schedule,
        .has_registers_for_columns = schedule.consumers == 2 && !is_wide(request) &&
                                     accumulators(request, schedule) + schedule.key_tile / 4 <= 192,
        .multiplies_grid_rows = multiplies_grid_rows(request, schedule, by_grid),
        .expanded = expanded};
    config.has_next = true; // the generic kernel is the last
    config.reason = "wgmma, " + std::to_string(schedule.consumers) + " warpgroups of 64 rows, " +
                    (schedule.overlaps ? "products under the softmax" : "products in order");
    if (by_grid) {
        config.key_width = request.key_grid.width;
        config.reason += ", keys as a grid of " + std::to_string(config.key_width) + " columns";
    }
    return config;
}

struct Choice {
    ForwardSchedule shape;
    bool by_grid;
};

// A stage of queries more or less needs the same registers.
bool needs_fewer_registers(const ForwardSchedule& shape, const ForwardSchedule& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
}

// The best, one that is a step smaller, and the smallest: each costs a compile.
std::vector<Choice> choices_for(const KernelRequest& request) {
    constexpr std::size_t kMost = 3;
    std::vector<Choice> choices;
    const auto take = [&](const ForwardSchedule& shape, bool by_grid) {
        const bool follows = !choices.empty() && choices.back().by_grid == by_grid;
        if (follows && !needs_fewer_registers(shape, choices.back().shape)) return;
        if (choices.size() == kMost) choices.pop_back();
        choices.push_back({shape, by_grid});
    };
    for (const ForwardSchedule& shape : kGridShapes)
        if (suits_grid(request, shape) && is_chosen(request, shape, true)) take(shape, true);
    for (const ForwardSchedule& shape : kForwardShapes)
        if (is_chosen(request, shape, false)) take(shape, false);
    return choices;
}

} // namespace

std::string_view why_not_sm90(const KernelRequest& request) {
    if (request.arch != 90) return "only Hopper has wgmma";
    if (!request.generic_because.empty()) return request.generic_because;
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
    std::vector<ForwardSchedule> shapes;
    for (const ForwardSchedule& shape : kGridShapes)
        if (suits_grid(request, shape)) shapes.push_back(shape);
    if (shapes.empty()) shapes.assign(kForwardShapes.begin(), kForwardShapes.end());
    // flexc's own choice comes first.
    const auto chosen = std::ranges::find_if(shapes, [&](const ForwardSchedule& shape) {
        return is_chosen(request, shape, fits_grid(request, shape));
    });
    if (chosen != shapes.end()) std::rotate(shapes.begin(), chosen, chosen + 1);
    std::size_t sizes = 0;
    for (const ForwardSchedule& shape : shapes) {
        if (!suits(request, shape, fits_grid(request, shape)) || sizes == kSizes) continue;
        if (sizes++ == 0)
            schedules.push_back(with_turns(request, shape, fits_grid(request, shape)));
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
        KernelConfig config =
            configured(request, *request.schedule, fits_grid(request, *request.schedule));
        config.has_next = false;
        config.reason += "; asked for";
        return config;
    }
    const std::vector<Choice> choices = choices_for(request);
    const auto refused = static_cast<std::size_t>(request.refused);
    if (refused >= choices.size()) return {};
    const Choice& choice = choices[refused];
    KernelConfig config =
        configured(request, with_turns(request, choice.shape, choice.by_grid), choice.by_grid);
    if (refused > 0) config.reason += "; larger tiles spilled registers or serialised products";
    return config;
}

} // namespace flexc::cuda
