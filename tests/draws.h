// Small random numbers.
#pragma once

namespace flexc::test {

// A function that draws a number of at least 0 and below the one that it is given.
template <typename Engine> auto draws_below(Engine& random) {
    return [&random](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
}

} // namespace flexc::test
