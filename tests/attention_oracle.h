// Attention by its definition, in double, with masks, scores and derivatives of the tape: shares no
// code with any backend or pass.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "ir/interp.h"
#include "ir/program.h"
#include "threads.h"

namespace flexc::test {

struct Problem {
    std::int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1;
    std::int64_t head_dim = 16, head_dim_v = 16;
    std::int64_t q_offset = 0, kv_offset = 0;
    std::int64_t head_offset = 0, kv_head_offset = 0;
    std::int64_t request = 0, q_row = 0, kv_row = 0; // of ragged tensors, of a batch of one
    double scale = 1;
    bool backward = true;               // else gradients stay 0
    bool rounds_scores = false;         // modified scores to f32, as kernels hold them
    std::vector<double> q, k, v, d_out; // [B, H, S, D], row-major
    std::vector<double> d_lse;          // empty: none
    std::vector<ir::Value<double>> params;
    std::vector<ir::BufferData> buffers; // one per Program::buffers
    std::vector<std::int64_t> sizes;     // one per Program::sizes
};

// What f32 can say of a number.
inline constexpr double kF32Rounding = 1e-6;

struct Answer {
    std::vector<double> o, lse, max_scores, dq, dk, dv;
    std::map<std::string, std::vector<double>> d_buffers; // of grad buffers
    // Sums of the absolute values of what the gradients sum, and of what f32 loses in the mod's
    // slopes by kF32Rounding: large where terms cancel.
    std::vector<double> dq_absolute, dk_absolute;
    std::map<std::string, std::vector<double>> d_buffers_absolute;
    // The tape's margin: where it is below what f32 can say, slopes on either side are right.
    double margin = std::numeric_limits<double>::infinity();
};

// The same bits for any number of threads.
Answer attention_oracle(const ir::Program& program, const Problem& problem,
                        int threads = all_processors());

} // namespace flexc::test
