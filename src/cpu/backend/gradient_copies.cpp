#include "cpu/backend/gradient_copies.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/backend/threads.h"

namespace flexc::cpu {

namespace {

// Copies beyond this many bytes, over all lanes and buffers, cost more than they give.
constexpr std::int64_t kMaxCopyBytes = std::int64_t{256} << 20;

std::int64_t elements_of(const GradientTarget& target) {
    std::int64_t elements = 1;
    for (int dim = 0; dim < target.rank; ++dim)
        elements *= target.shape[dim];
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

std::uint32_t GradientCopies::allowed_split(const Launch& launch) {
    std::uint32_t allowed = kSeparatesB | kSeparatesHKv | kSeparatesKv;
    std::int64_t budget = kMaxCopyBytes;
    for (std::size_t i = 0; i < launch.gradient_count; ++i) {
        const GradientTarget& target = launch.gradients[i];
        const std::int64_t bytes =
            elements_of(target) * static_cast<std::int64_t>(sizeof(float)) * launch.shape->threads;
        if (bytes <= budget)
            budget -= bytes;
        else
            allowed &= target.separation;
    }
    return allowed;
}

GradientCopies::GradientCopies(const Launch& launch, std::uint32_t split, int lanes, Arena& arena)
    : launch_(launch), lanes_(lanes) {
    words_ = arena.take<std::uint64_t>(lanes * static_cast<std::int64_t>(launch.word_count));
    for (std::size_t i = 0; i < launch.gradient_count; ++i) {
        const GradientTarget& target = launch.gradients[i];
        Copy copy{&target, elements_of(target), nullptr};
        if ((split & ~target.separation) != 0) copy.data = arena.take<float>(lanes * copy.elements);
        copies_.push_back(copy);
    }
}

const std::uint64_t* GradientCopies::begin_lane(int lane) const {
    std::uint64_t* words = words_ + lane * static_cast<std::int64_t>(launch_.word_count);
    std::copy_n(launch_.words, launch_.word_count, words);
    for (const Copy& copy : copies_) {
        const GradientTarget& target = *copy.target;
        float* data = target.data;
        if (copy.data != nullptr) {
            data = copy.data + lane * copy.elements;
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
        for_units(lanes_, (copy.elements + kBlock - 1) / kBlock, [&](std::int64_t block, int) {
            const std::int64_t first = block * kBlock;
            const std::int64_t count = std::min(kBlock, copy.elements - first);
            float sums[kBlock];
            std::copy_n(copy.data + first, count, sums);
            for (int lane = 1; lane < lanes_; ++lane)
                for (std::int64_t i = 0; i < count; ++i)
                    sums[i] += copy.data[lane * copy.elements + first + i];
            add_strided(*copy.target, first, count, sums);
        });
    }
}

} // namespace flexc::cpu
