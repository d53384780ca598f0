#include "cpu/backend/gradient_copies.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/backend/threads.h"
#include "support/amounts.h"

namespace flexc::cpu {

namespace {

// Copies beyond this many bytes, over all streams and buffers, cost more than they give.
constexpr std::int64_t kMaxCopyBytes = std::int64_t{256} << 20;
// Enough for any machine to be busy.
constexpr std::int64_t kMaxStreams = 256, kEnoughStreams = 64;
// Zeroing and adding a copied element costs about a sixth of a score: copies may have this many
// elements for each score, so that they take a few percent of the time at most.
constexpr std::int64_t kScoresPerCopiedElement = 8;

std::int64_t elements_of(const GradientTarget& target) {
    std::int64_t elements = 1;
    for (int dim = 0; dim < target.rank; ++dim)
        elements = support::times(elements, target.shape[dim]);
    return elements;
}

std::uint64_t word_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// Adds a row-major array to a tensor of any strides.
void add_strided(const GradientTarget& target, std::int64_t first, std::int64_t count,
                 const float* sums) {
    for (std::int64_t i = 0; i < count; ++i) {
        std::int64_t rest = first + i, offset = 0;
        for (int dim = target.rank; dim-- > 0;) {
            offset += rest % target.shape[dim] * target.strides[dim];
            rest /= target.shape[dim];
        }
        target.data[offset] += sums[i];
    }
}

} // namespace

GradientSplit
GradientCopies::choose(const Launch& launch,
                       const std::function<std::int64_t(std::uint32_t variables)>& units) {
    const AttentionArguments& in = *launch.arguments;
    const std::int64_t scores =
        support::product<std::int64_t>(in.batch, in.heads, in.q_len, in.kv_len);
    auto streams_with = [&](std::int64_t elements) {
        const std::int64_t all = std::max<std::int64_t>(elements, 1);
        return std::clamp<std::int64_t>(
            std::min(scores / kScoresPerCopiedElement / all,
                     kMaxCopyBytes / static_cast<std::int64_t>(sizeof(float)) / all),
            1, kMaxStreams);
    };
    GradientSplit apart; // large buffers are left to the variables that separate them
    std::int64_t small = 0, large = 0;
    for (std::size_t i = 0; i < launch.gradient_count; ++i) {
        const std::int64_t elements = elements_of(launch.gradients[i]);
        if (streams_with(small + elements) >= kEnoughStreams) {
            small += elements;
        } else {
            large += elements;
            apart.variables &= launch.gradients[i].separation;
        }
    }
    const std::int64_t apart_units = units(apart.variables);
    apart.streams = small == 0 ? apart_units : std::min(apart_units, streams_with(small));
    GradientSplit copied;
    copied.streams = std::min(units(copied.variables), streams_with(small + large));
    return large == 0 || copied.streams <= apart.streams ? apart : copied;
}

GradientCopies::GradientCopies(const Launch& launch, std::uint32_t split, std::int64_t streams,
                               int threads, support::Arena& arena)
    : launch_(launch), streams_(streams), threads_(threads) {
    words_ = arena.take<std::uint64_t>(streams * static_cast<std::int64_t>(launch.word_count));
    for (std::size_t i = 0; i < launch.gradient_count; ++i) {
        const GradientTarget& target = launch.gradients[i];
        Copy copy{&target, elements_of(target), nullptr};
        if (streams > 1 && (split & ~target.separation) != 0)
            copy.data = arena.take<float>(support::times(streams, copy.elements));
        copies_.push_back(copy);
    }
}

const std::uint64_t* GradientCopies::begin(std::int64_t stream) const {
    std::uint64_t* words = words_ + stream * static_cast<std::int64_t>(launch_.word_count);
    std::copy_n(launch_.words, launch_.word_count, words);
    for (const Copy& copy : copies_) {
        const GradientTarget& target = *copy.target;
        float* data = target.data;
        if (copy.data != nullptr) {
            data = copy.data + stream * copy.elements;
            std::fill_n(data, copy.elements, 0.0f);
        }
        if (target.data_word >= 0) words[target.data_word] = std::bit_cast<std::uint64_t>(data);
        std::int64_t stride = 1;
        for (int dim = target.rank; dim-- > 0;) {
            if (target.stride_words[dim] >= 0)
                words[target.stride_words[dim]] =
                    word_of(copy.data != nullptr ? stride : target.strides[dim]);
            stride *= target.shape[dim];
        }
    }
    return words;
}

void GradientCopies::finish() const {
    constexpr std::int64_t kBlock = 1024;
    for (const Copy& copy : copies_) {
        if (copy.data == nullptr) continue;
        for_units(*launch_.pool, threads_, (copy.elements + kBlock - 1) / kBlock,
                  [&](std::int64_t block, int) {
                      const std::int64_t first = block * kBlock;
                      const std::int64_t count = std::min(kBlock, copy.elements - first);
                      float sums[kBlock];
                      std::copy_n(copy.data + first, count, sums);
                      for (std::int64_t stream = 1; stream < streams_; ++stream)
                          for (std::int64_t i = 0; i < count; ++i)
                              sums[i] += copy.data[stream * copy.elements + first + i];
                      add_strided(*copy.target, first, count, sums);
                  });
    }
}

} // namespace flexc::cpu
