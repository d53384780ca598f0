#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "common/exact_sum.h"
#include "draws.h"
#include "fresh_seed.h"

namespace {

void add(exact::Sum& sum, float x) {
    const exact::Term term = exact::term_of(std::bit_cast<unsigned>(x));
    sum.flags |= term.flags;
    sum.words[term.word] += term.low;
    if (term.high != 0) sum.words[term.word + 1] += term.high;
}

float total(const std::vector<float>& terms) {
    exact::Sum sum{};
    for (const float term : terms)
        add(sum, term);
    return std::bit_cast<float>(exact::rounded(sum));
}

// By schoolbook arithmetic: one bit a digit, and a float by trial of its two neighbours.
class Bits {
  public:
    void add(float x) {
        const auto bits = std::bit_cast<std::uint32_t>(x);
        const int exponent = static_cast<int>(bits >> 23 & 0xff);
        const std::uint32_t mantissa = (bits & 0x7fffff) | (exponent == 0 ? 0u : 0x800000u);
        const int from = std::max(exponent - 1, 0);
        for (int i = 0; i < 24; ++i)
            if (mantissa >> i & 1) counts_[from + i] += bits >> 31 ? -1 : 1;
    }
    // Of twice the sum.
    int sign_after_doubling_less(float x, float y) const {
        Bits difference = *this;
        for (std::size_t i = kCount; i-- > 1;)
            difference.counts_[i] = difference.counts_[i - 1];
        difference.counts_[0] = 0;
        difference.add(-x);
        difference.add(-y);
        return difference.sign();
    }
    int sign() const {
        std::vector<long long> digits(counts_, counts_ + kCount);
        long long carry = 0;
        bool any = false;
        for (long long& digit : digits) {
            const long long value = digit + carry;
            digit = value & 1;
            carry = value >> 1;
            any = any || digit != 0;
        }
        return carry < 0 ? -1 : any || carry > 0 ? 1 : 0;
    }

  private:
    static constexpr std::size_t kCount = 360;
    long long counts_[kCount] = {};
};

// Whether no float is nearer, and of two that are as near the even one was taken.
bool is_nearest(const std::vector<float>& terms, float got) {
    Bits sum;
    for (const float term : terms)
        sum.add(term);
    const float infinity = std::numeric_limits<float>::infinity();
    const bool even = (std::bit_cast<std::uint32_t>(got) & 1) == 0;
    const float above = std::nextafter(got, infinity), below = std::nextafter(got, -infinity);
    const int to_above = std::isinf(above) ? -1 : sum.sign_after_doubling_less(got, above);
    const int to_below = std::isinf(below) ? 1 : sum.sign_after_doubling_less(got, below);
    return (even ? to_above <= 0 : to_above < 0) && (even ? to_below >= 0 : to_below > 0);
}

class Random {
  public:
    explicit Random(std::uint32_t seed) : engine_(seed) {}
    std::mt19937& engine() { return engine_; }
    int below(int count) { return flexc::test::draws_below(engine_)(count); }
    // Any float with an exponent of this range; 0 is denormal.
    float number(int lowest, int highest) {
        const auto exponent = static_cast<std::uint32_t>(lowest + below(highest - lowest + 1));
        const auto rest = static_cast<std::uint32_t>(engine_());
        return std::bit_cast<float>((rest & 0x807fffff) | exponent << 23);
    }

  private:
    std::mt19937 engine_;
};

} // namespace

TEST_CASE("exact sums are the nearest floats, whatever the order of their terms") {
    Random random(flexc::test::fresh_seed());
    for (int round = 0; round < 3000; ++round) {
        // Wide and narrow ranges, at the least floats, the greatest, and between.
        const int width = random.below(3) == 0 ? random.below(200) : random.below(40);
        const int lowest = random.below(4) == 0 ? 0 : random.below(250 - width);
        std::vector<float> terms;
        for (int i = random.below(60); i >= 0; --i) {
            terms.push_back(random.number(lowest, lowest + width));
            // Sums that cancel show what lower words hold.
            if (random.below(3) == 0) terms.push_back(-terms[random.below(int(terms.size()))]);
        }
        const float first = total(terms);
        CHECK_MESSAGE(is_nearest(terms, first), first);
        for (int order = 0; order < 3; ++order) {
            std::ranges::shuffle(terms, random.engine());
            CHECK(std::bit_cast<std::uint32_t>(total(terms)) ==
                  std::bit_cast<std::uint32_t>(first));
        }
    }
}

TEST_CASE("a sum of one float is that float") {
    Random random(flexc::test::fresh_seed());
    for (int i = 0; i < 20000; ++i) {
        const float x = random.number(0, 254);
        if (x != 0)
            CHECK(std::bit_cast<std::uint32_t>(total({x})) == std::bit_cast<std::uint32_t>(x));
    }
    CHECK(std::bit_cast<std::uint32_t>(total({-0.0f})) == 0);
    CHECK(std::bit_cast<std::uint32_t>(total({})) == 0);
}

TEST_CASE("halves round to the even float") {
    CHECK(total({1.0f, 0x1p-24f}) == 1.0f);
    CHECK(total({1.0f, 0x1p-24f, 0x1p-149f}) == 1.0f + 0x1p-23f);
    CHECK(total({1.0f, 0x1p-24f, -0x1p-149f}) == 1.0f);
    CHECK(total({1.0f + 0x1p-23f, 0x1p-24f}) == 1.0f + 0x1p-22f);
    CHECK(total({-1.0f, -0x1p-24f}) == -1.0f);
    CHECK(total({0x1p-126f, -0x1p-149f}) == 0x1p-126f - 0x1p-149f);
}

TEST_CASE("the greatest floats add up, to infinity at the end alone") {
    const float most = std::numeric_limits<float>::max();
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(total({most, most, -most}) == most);
    CHECK(total({most, most, -most, -most}) == 0);
    CHECK(total({most, most}) == infinity);
    CHECK(total({-most, -most}) == -infinity);
    CHECK(total({most, 0x1p102f}) == most);
    CHECK(total({most, 0x1p103f}) == infinity);
}

TEST_CASE("what is no number stays so") {
    const float infinity = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(total({1.0f, infinity, -3.0f}) == infinity);
    CHECK(total({-infinity, 2.0f}) == -infinity);
    CHECK(std::isnan(total({infinity, -infinity})));
    CHECK(std::isnan(total({nan, 1.0f})));
    CHECK(std::isnan(total({infinity, nan})));
}

TEST_CASE("words hold billions of terms of one sign") {
    exact::Sum sum{};
    const float x = 0x1.fffffep+20f;
    const exact::Term term = exact::term_of(std::bit_cast<unsigned>(-x));
    constexpr long long kCount = 1ll << 32;
    sum.words[term.word] = term.low * kCount;
    sum.words[term.word + 1] = term.high * kCount;
    CHECK(std::bit_cast<float>(exact::rounded(sum)) == -x * 0x1p32f);
}
