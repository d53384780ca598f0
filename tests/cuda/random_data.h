// Sizes, parameters and buffers of a program, for tests that choose the standard sizes themselves.
#pragma once

#include <random>
#include <vector>

#include "ir/interp.h"

namespace flexc::test {

// Multiples of 1/16 in [-2, 2], exact in every type.
inline double random_real(std::mt19937& random) {
    return static_cast<double>(static_cast<int>(random() % 65) - 32) / 16;
}

// Keeps what the environment points to. Parameters have their defaults.
class RandomData {
  public:
    RandomData(const ir::Program& program, ir::Environment& at, std::mt19937& random)
        : buffers_(program.buffers.size()) {
        while (at.sizes.size() < program.sizes.size())
            at.sizes.push_back(5 + static_cast<std::int64_t>(random() % 30));
        for (const ir::Param& param : program.params)
            at.params.push_back({.integer = static_cast<std::int64_t>(param.default_value),
                                 .real = param.default_value});
        for (std::size_t i = 0; i < buffers_.size(); ++i) {
            std::int64_t elements = 1;
            for (const ir::Dim& dim : program.buffers[i].dims) {
                buffers_[i].extents.push_back(dim.is_constant() ? dim.constant
                                                                : at.sizes[dim.size]);
                elements *= buffers_[i].extents.back();
            }
            const bool is_real = ir::type_of(program.buffers[i].dtype) == ir::Type::real;
            for (std::int64_t j = 0; j < elements; ++j)
                if (is_real)
                    buffers_[i].reals.push_back(random_real(random));
                else
                    buffers_[i].integers.push_back(static_cast<std::int64_t>(random() % 5));
        }
        for (const ir::BufferData& buffer : buffers_)
            at.buffers.push_back(&buffer);
    }
    // A quarter of the real numbers become x.
    void replace_some(double x, std::mt19937& random) {
        for (ir::BufferData& buffer : buffers_)
            for (double& real : buffer.reals)
                if (random() % 4 == 0) real = x;
    }
    RandomData(const RandomData&) = delete;
    RandomData& operator=(const RandomData&) = delete;

  private:
    std::vector<ir::BufferData> buffers_;
};

} // namespace flexc::test
