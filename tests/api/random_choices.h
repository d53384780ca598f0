// What tests of random members of a class draw from.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>

#include "draws.h"
#include "random_program.h"

namespace flexc::test {

// FLEXC_TEST_SEED names the members, so that a machine without the GPU can compile them beforehand.
inline std::uint32_t seed_of_members() {
    return std::getenv("FLEXC_TEST_SEED") == nullptr ? std::random_device()()
                                                     : static_cast<std::uint32_t>(first_seed());
}

// Of members that all tests of a run draw together.
inline int below(int n) {
    static std::mt19937 random(seed_of_members());
    return draws_below(random)(n);
}

class RandomChoices {
  public:
    explicit RandomChoices(std::uint32_t seed) : random_(seed) {}

    int below(int n) { return draws_below(random_)(n); }
    std::string one_of(std::initializer_list<const char*> texts) {
        return texts.begin()[below(static_cast<int>(texts.size()))];
    }

  protected:
    std::mt19937 random_;
};

} // namespace flexc::test
