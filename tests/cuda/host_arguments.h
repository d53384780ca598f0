// The argument words of a mod, over arrays in the layout that a device would have: each in its own
// type, with strides that are not those of a dense array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/exact_sum.h"
#include "ir/interp.h"
#include "passes/mod.h"

namespace flexc::test {

class HostArguments {
  public:
    // Arrays whose last dim's elements are side by side, in rows so many elements longer than they
    // are, from so many elements behind 16 aligned bytes on. Their gradients have no gaps.
    struct Rows {
        std::int64_t gap = 0, behind = 0;
    };
    HostArguments(const passes::Mod& mod, const ir::Environment& environment,
                  std::optional<Rows> rows = {});
    HostArguments(const HostArguments&) = delete;
    HostArguments& operator=(const HostArguments&) = delete;

    const std::uint64_t* words() const { return words_.data(); }
    bool flag() const { return flag_ != 0; }
    void clear_flag() const { flag_ = 0; }

    // Row-major, by buffer; empty for buffers without a gradient.
    std::vector<std::vector<double>> empty_gradients() const;
    void clear_gradients(float value = 0); // of floats; exact sums become 0
    float gradient(std::size_t buffer, std::size_t element) const;

  private:
    struct Array {
        std::vector<std::uint8_t> bytes;   // of the buffer
        std::vector<std::int64_t> strides; // in elements
        std::int64_t first = 0;            // element
        std::vector<float> gradient;
        std::vector<exact::Sum> sums; // instead, where the mod wants these
        std::vector<std::int64_t> gradient_strides;
    };
    void fill(const ir::Buffer& buffer, const ir::BufferData& data, Array& array) const;
    std::uint64_t word(const passes::ArgumentSlot& slot, const ir::Program& program,
                       const ir::Environment& environment);

    std::optional<Rows> rows_;
    std::vector<Array> arrays_;
    std::vector<const ir::BufferData*> extents_;
    std::vector<bool> wants_gradient_;
    std::vector<std::uint64_t> words_;
    mutable std::int32_t flag_ = 0;
};

// Where in its buffer, row-major, the element lies that a read names; nothing outside.
std::optional<std::size_t> element_of(const ir::Program& program, ir::NodeId read,
                                      const ir::Environment& at);

// Calls visit(element, partial) for what an element of the score matrix adds to the gradient of a
// read that is inside of its buffer: once, or for each term if it is in a sum.
template <typename Visit>
void visit_terms(const passes::Mod& mod, const passes::ReadGradient& gradient, ir::Environment at,
                 Visit visit) {
    const ir::NodeId counter = mod.counters[gradient.read];
    std::int64_t end = at.counter + 1;
    if (counter != ir::kNoNode) {
        const auto& range = mod.program.graph[counter].operands;
        at.counter = ir::evaluate_integer(mod.program, range[0], at);
        end = ir::evaluate_integer(mod.program, range[1], at);
    }
    for (; at.counter < end; ++at.counter)
        if (const auto element = element_of(mod.program, gradient.read, at))
            visit(*element, ir::evaluate_real(mod.program, gradient.partial, at));
}

} // namespace flexc::test
