#include "distributed/collectives.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

namespace flexc::distributed {

Result<Gathering> Gathering::start(Communicator& communicator, std::span<const std::byte> own) {
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
    const auto ticket = communicator.start(kKeyChannel, sends, receives, all);
    if (!ticket) return ticket.error();
    return Gathering(communicator, std::move(all), *ticket);
}

Result<std::vector<std::byte>> Gathering::finish() {
    if (auto done = communicator_->wait(ticket_); !done) return done.error();
    return std::move(*all_);
}

Result<void> all_reduce(RankWork& work, Communicator& communicator, const TensorView& values,
                        const std::shared_ptr<void>& memory, float factor) {
    const std::int64_t ranks = communicator.ranks(), self = communicator.rank();
    const std::int64_t elements = values.elements();
    auto* const all = static_cast<float*>(values.data);
    // Each rank sums one part on behalf of all.
    const auto begin = [&](std::int64_t rank) { return elements * rank / ranks; };
    const auto count = [&](std::int64_t rank) { return begin(rank + 1) - begin(rank); };
    const auto part = [](float* data, std::int64_t length) {
        return TensorView::contiguous(data, DType::f32, {length});
    };
    auto beside = work.beside();
    if (!beside) return beside.error();
    auto room = (*beside)->allocate(static_cast<std::size_t>(ranks * count(self)) * sizeof(float));
    if (!room) return room.error();
    auto* const parts = reinterpret_cast<float*>(room->get());
    const auto owner = std::make_shared<std::pair<std::shared_ptr<void>, Bytes>>(memory, *room);
    if (auto done = (*beside)->copy(part(all + begin(self), count(self)),
                                    part(parts + self * count(self), count(self)));
        !done)
        return done;

    std::vector<Communicator::Message> sends, receives;
    const auto exchange = [&]() -> Result<void> {
        const auto ticket = work.start(communicator, kKeyChannel, sends, receives, owner);
        if (!ticket) return ticket.error();
        sends.clear();
        receives.clear();
        // The rank's own part is packed, not received.
        if (auto done = work.let_messages_begin(); !done) return done;
        return work.wait(communicator, *ticket);
    };
    const auto add = [&](std::vector<Communicator::Message>& messages, std::int64_t peer,
                         float* data, std::int64_t length) {
        if (peer != self && length > 0)
            messages.push_back(
                {static_cast<int>(peer), data, static_cast<std::size_t>(length) * sizeof(float)});
    };
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
        add(sends, peer, all + begin(peer), count(peer));
        add(receives, peer, parts + peer * count(self), count(self));
    }
    if (auto done = exchange(); !done) return done;
    if (auto done = work.tensors().sum({.parts = parts,
                                        .to = all + begin(self),
                                        .count = count(self),
                                        .ranks = static_cast<int>(ranks),
                                        .factor = factor});
        !done)
        return done;
    beside = work.beside();
    if (!beside) return beside.error();
    for (std::int64_t peer = 0; peer < ranks; ++peer) {
        add(sends, peer, all + begin(self), count(self));
        add(receives, peer, all + begin(peer), count(peer));
    }
    return exchange();
}

} // namespace flexc::distributed
