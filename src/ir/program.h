// A whole program after the front end: declarations and the roots of its graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "flexc/options.h"
#include "flexc/types.h"
#include "ir/graph.h"

namespace flexc::ir {

// A dimension is a number or a size symbol (index into Program::sizes).
struct Dim {
    std::int64_t constant = 0;
    std::uint32_t size = ~0u;
    bool is_constant() const { return size == ~0u; }
};

struct Buffer {
    std::string name;
    DType dtype = DType::f32;
    std::vector<Dim> dims;
    bool grad = false;
    dsl::Span span;
};

struct Param {
    std::string name;
    Type type = Type::real;
    double default_value = 0; // integers and bools too: exact up to 2^53
    bool has_default = true;
    dsl::Span span;
};

// The first seven sizes are always B H H_KV Q_LEN KV_LEN D DV; others are bound by the tensors
// passed.
enum StandardSize : std::uint32_t { kB, kH, kHKv, kQLen, kKvLen, kD, kDv, kStandardSizes };

// Limits of the language. What has a place for each of a program's buffers, params or sizes relies
// on them.
inline constexpr std::size_t kMaxBuffers = 32, kMaxParams = 256;
inline constexpr std::size_t kMaxSizes = kStandardSizes + kMaxBuffers * std::size_t{kMaxDims};
// Most terms of a sum. If its range depends on sizes, this is checked at plan time.
inline constexpr std::int64_t kMaxTerms = 65536;

struct Program {
    Graph graph;
    std::vector<std::string> sizes = {"B", "H", "H_KV", "Q_LEN", "KV_LEN", "D", "DV"};
    std::vector<Buffer> buffers;
    std::vector<Param> params;
    // With layouts other than dense, q_len and kv_len are leaves of their own, and the sizes Q_LEN
    // and KV_LEN are the longest request's; q_idx is then bounded by neither.
    Layout query_layout = Layout::dense, key_layout = Layout::dense;
    bool is_dense() const { return query_layout == Layout::dense && key_layout == Layout::dense; }
    const Buffer& buffer_of(NodeId read) const { return buffers[graph[read].symbol]; }
    NodeId score = kNoNode; // always set by the front end: real
    NodeId mask = kNoNode;  // always set by the front end: bool; constant true when there is none
    // Real, and the same for a whole row: exp(sink) joins the sum that weights are divided by.
    NodeId sink = kNoNode;
};

inline Type type_of(DType dtype) {
    switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::e4m3:
    case DType::e5m2: return Type::real;
    case DType::boolean: return Type::boolean;
    default: return Type::integer;
    }
}

// Others are of keys and values alone.
inline bool may_be_buffer(DType dtype) { return dtype != DType::e4m3 && dtype != DType::e5m2; }

} // namespace flexc::ir
