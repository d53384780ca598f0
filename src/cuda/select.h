// Which template and which tile sizes suit a request.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/arguments.h"
#include "cuda/config.h"

namespace flexc::cuda {

// Dynamic shared memory that one block may have, in bytes.
int shared_memory_limit(int arch);

// Bytes of one row of a tile in shared memory: columns rounded up to 16 elements, and 16 bytes that
// keep eight consecutive rows in different banks. The device's Tile lays rows out the same way.
int tile_row_bytes(int columns, DType dtype);

constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }
// Columns of the matrix instructions, and panels of 64 columns in shared memory, of a row.
constexpr int padded_columns(int columns) { return round_up_16(columns); }
constexpr int panels(int columns) { return (columns + 63) / 64; }

// Fits every request within the language's limits: any head dim from 1 to 256, arch >= 80.
KernelConfig select_kernel(const KernelRequest& request);

KernelConfig select_forward(const KernelRequest& request);
// Empty where the kernel cannot do what is asked, or every configuration was refused.
std::optional<KernelConfig> select_forward_sm90(const KernelRequest& request);
// What KernelRequest::schedule may be, the choice without one first; empty where that kernel is
// none.
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);
// Why that kernel is none for the request; empty when it is one.
std::string_view why_not_sm90(const KernelRequest& request);
KernelConfig select_backward(const KernelRequest& request); // delta and the backward kinds
// Of the fused backward's three kernels. Empty as above.
std::optional<KernelConfig> select_backward_sm90(const KernelRequest& request);
std::string_view why_not_backward_sm90(const KernelRequest& request);
// How many configurations of the fused kernel come before the generic one.
int backward_sm90_choices(const KernelRequest& request);

// Blocks of a launch: a one-dimensional grid. Forward, dq, delta and convert have one per query
// tile and query head; dk and dv, fused or not, one per key tile and key/value head; expand and
// fold one per key_tile distances and query head. Blocks of forward_sm90.cu stay: there need not be
// more of them than multiprocessors.
std::int64_t grid_blocks(const KernelConfig& config, const AttentionArguments& arguments);

} // namespace flexc::cuda
