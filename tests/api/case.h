// One end-to-end case: a program, sizes and types; run on a device through the public API and
// compared with attention by its definition.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "flexc/flexc.h"
#include "ir/program.h"

namespace flexc::test {

struct Case {
    std::string text;
    std::string reference = {}; // what the text should mean, with the same names; empty: itself
    DType dtype = DType::f32;
    std::int64_t batch = 2, heads = 4, kv_heads = 2, q_len = 37, kv_len = 53;
    int head_dim = 16, head_dim_v = 0;
    std::map<std::string, std::int64_t> dims = {}; // sizes that only buffers bind
    std::map<std::string, double> params = {};
    // Integers of a buffer at its flat position; default: position % 5.
    std::map<std::string, std::function<std::int64_t(std::int64_t)>> integers = {};
    // The same for real numbers; default: random.
    std::map<std::string, std::function<double(std::int64_t)>> reals = {};
    std::int64_t q_offset = 0, kv_offset = 0;
    // Of a larger whole; none: all heads are here.
    std::int64_t head_offset = 0, global_heads = 0, global_kv_heads = 0;
    float scale = 0; // 0: 1 / sqrt(head_dim)
    // Scores so large that it shows how f32 rounds them. Products are exact then, where the scale
    // is a power of two.
    bool large_scores = false;
    bool with_d_lse = false;
    bool strided = false;     // [B, S, H, D] storage and a padded row
    std::int64_t padding = 3; // of that row, in elements; 8 keeps 16-bit rows aligned
    bool f32_outputs = false;
    bool accumulates = false; // gradients, f32, are added to what is there
    bool backward = true;
    bool max_scores = false;
    ForwardKernel forward_kernel = ForwardKernel::automatic;
    BackwardKernel backward_kernel = BackwardKernel::automatic;
    TileSource tile_source = TileSource::automatic;
    GradientType gradient_type = GradientType::f32;
    bool deterministic = false;
    int runs = 1; // of the backward: all must give the same bytes
};

// Empty when everything is within tolerance; else what differs, one line each.
std::string run_case(const Case& one, Device device, std::uint32_t seed);

// The same for a program that was not written; `text` and `reference` are nothing then.
std::string run_program(const ir::Program& program, const Case& one, Device device,
                        std::uint32_t seed);

// CPU, CUDA device 0 or both, as this machine and build have them; with FLEXC_TEST_DEVICE only that
// one, cpu or cuda, whether it is there or not.
std::vector<Device> test_devices();
std::string name(Device device);

// On all of them, from a fresh seed; fails the current test where they differ from the definition.
void check_everywhere(const Case& one);

} // namespace flexc::test
