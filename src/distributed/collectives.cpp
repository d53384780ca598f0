#include "distributed/collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace flexc::distributed {

namespace {

Result<void> exchange(Communicator& communicator, std::span<const Communicator::Message> sends,
                      std::span<const Communicator::Message> receives,
                      std::shared_ptr<void> memory) {
    const auto ticket = communicator.start(kKeyChannel, sends, receives, std::move(memory));
    if (!ticket) return ticket.error();
    return communicator.wait(*ticket);
}

} // namespace

Result<std::vector<std::byte>> all_gather(Communicator& communicator,
                                          std::span<const std::byte> own) {
    const auto ranks = static_cast<std::size_t>(communicator.ranks());
    const auto self = static_cast<std::size_t>(communicator.rank());
    auto all = std::make_shared<std::vector<std::byte>>(ranks * own.size());
    std::ranges::copy(own, all->begin() + static_cast<std::ptrdiff_t>(self * own.size()));
    std::vector<Communicator::Message> sends, receives;
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        if (peer == self) continue;
        const int number = static_cast<int>(peer);
        sends.push_back({number, all->data() + self * own.size(), own.size()});
        receives.push_back({number, all->data() + peer * own.size(), own.size()});
    }
    if (auto done = exchange(communicator, sends, receives, all); !done) return done.error();
    return std::move(*all);
}

Result<void> all_reduce(Communicator& communicator, std::span<float> values, float factor) {
    const auto ranks = static_cast<std::size_t>(communicator.ranks());
    const auto self = static_cast<std::size_t>(communicator.rank());
    // Each rank sums one part for all.
    const auto begin = [&](std::size_t rank) { return values.size() * rank / ranks; };
    const auto count = [&](std::size_t rank) { return begin(rank + 1) - begin(rank); };
    struct Memory {
        std::vector<float> own, parts;
    };
    auto memory = std::make_shared<Memory>();
    memory->own.assign(values.begin(), values.end());
    memory->parts.resize(ranks * count(self));
    std::vector<Communicator::Message> sends, receives;
    const auto add = [&](std::vector<Communicator::Message>& messages, std::size_t peer,
                         float* data, std::size_t length) {
        if (peer != self && length > 0)
            messages.push_back({static_cast<int>(peer), data, length * sizeof(float)});
    };
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        add(sends, peer, memory->own.data() + begin(peer), count(peer));
        add(receives, peer, memory->parts.data() + peer * count(self), count(self));
    }
    if (auto done = exchange(communicator, sends, receives, memory); !done) return done;

    float* const sums = memory->own.data() + begin(self);
    for (std::size_t i = 0; i < count(self); ++i) {
        double sum = 0;
        for (std::size_t peer = 0; peer < ranks; ++peer)
            sum += peer == self ? double{sums[i]} : double{memory->parts[peer * count(self) + i]};
        sums[i] = static_cast<float>(sum * factor);
    }
    sends.clear();
    receives.clear();
    for (std::size_t peer = 0; peer < ranks; ++peer) {
        add(sends, peer, sums, count(self));
        add(receives, peer, memory->own.data() + begin(peer), count(peer));
    }
    if (auto done = exchange(communicator, sends, receives, memory); !done) return done;
    std::ranges::copy(memory->own, values.begin());
    return {};
}

} // namespace flexc::distributed
