// Random numbers from a seed, the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace flexc::test {

class Random {
  public:
    explicit Random(std::uint64_t seed) : engine_(seed * 0x9e3779b97f4a7c15ULL + 1) {}

    // In [low, high].
    std::int64_t integer(std::int64_t low, std::int64_t high) {
        const auto span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) + 1;
        const std::uint64_t bits = engine_();
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) +
                                         (span == 0 ? bits : bits % span));
    }
    bool chance(int percent) { return integer(0, 99) < percent; }
    // Multiples of 1/16 in [-2, 2].
    double real() { return static_cast<double>(integer(-32, 32)) / 16; }
    template <typename Container> const auto& pick(const Container& container) {
        return container[static_cast<std::size_t>(
            integer(0, static_cast<std::int64_t>(container.size()) - 1))];
    }

  private:
    std::mt19937_64 engine_;
};

} // namespace flexc::test
