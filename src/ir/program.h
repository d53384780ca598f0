// A whole program after the front end: declarations and the roots of its graph.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

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

struct Program {
    Graph graph;
    std::vector<std::string> sizes = {"B", "H", "H_KV", "Q_LEN", "KV_LEN", "D", "DV"};
    std::vector<Buffer> buffers;
    std::vector<Param> params;
    NodeId score = kNoNode; // always set by the front end: real
    NodeId mask = kNoNode;  // always set by the front end: bool; constant true when there is none
};

inline Type type_of(DType dtype) {
    switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16: return Type::real;
    case DType::boolean: return Type::boolean;
    default: return Type::integer;
    }
}

} // namespace flexc::ir
