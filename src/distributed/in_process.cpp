// Ranks that are threads of one process: a message is a single copy, made by whichever side comes
// second; on GPUs in its stream, after the first side's stream has reached the message.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/driver.h"
#include "cuda/owned.h"
#include "flexc/distributed.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using Event = std::shared_ptr<const cuda::OwnedEvent>;

// For messages in GPU memory.
struct InStream {
    void* stream = nullptr;
    int device = 0;
    Event is_there; // the stream has come to the message
};

// One side of a message.
struct Post {
    void* data = nullptr;
    std::size_t bytes = 0;
    std::shared_ptr<void> memory;
    std::optional<InStream> on_gpu;
    bool is_done = false;
    Event is_copied;       // on a GPU, the copy that is_done has given a stream
    Result<void> outcome;  // of giving it
    bool is_wrong = false; // the other side said another size
    std::size_t other_bytes = 0;
};
using PostPointer = std::shared_ptr<Post>;

struct Route {
    int from = 0, to = 0, channel = 0;
    friend auto operator<=>(const Route&, const Route&) = default;
};

struct Queues {
    std::deque<PostPointer> sends, receives; // one of them is empty
};

struct Group {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<Route, Queues> routes;
    std::vector<bool> has_left;
    CommunicatorOptions options;
};

class InProcess final : public Communicator {
  public:
    InProcess(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

    ~InProcess() override {
        const std::lock_guard lock(group_->mutex);
        group_->has_left[static_cast<std::size_t>(rank_)] = true;
        group_->changed.notify_all();
    }

    int rank() const override { return rank_; }
    int ranks() const override { return static_cast<int>(group_->has_left.size()); }

    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        return guarded([&]() -> Result<Ticket> {
            return start(channel, sends, receives, std::move(memory), {});
        });
    }

    Result<void> wait(Ticket ticket) override {
        return guarded([&]() -> Result<void> {
            const auto done = meet_all(ticket);
            return done ? Result<void>{} : done.error();
        });
    }

    bool has_streams() const override { return true; }

    Result<Ticket> start_on_stream(Stream stream, int channel, std::span<const Message> sends,
                                   std::span<const Message> receives,
                                   std::shared_ptr<void> memory) override {
        return guarded([&]() -> Result<Ticket> {
            const auto device = cuda::device_of(stream.handle);
            if (!device) return device.error();
            auto event = recorded(*device, stream.handle);
            if (!event) return event.error();
            return start(channel, sends, receives, std::move(memory),
                         InStream{stream.handle, *device, std::move(*event)});
        });
    }

    Result<void> wait_on_stream(Ticket ticket, Stream stream) override {
        return guarded([&]() -> Result<void> {
            const auto pending = meet_all(ticket);
            if (!pending) return pending.error();
            for (const auto& [peer, post] : *pending) {
                if (!post->outcome) return post->outcome;
                auto scope = cuda::ContextScope::enter(post->on_gpu->device, stream.handle);
                if (!scope) return scope.error();
                if (auto done = cuda::wait_for_event(stream.handle, post->is_copied->get()); !done)
                    return done;
            }
            return {};
        });
    }

    // Streams only wait for work that other ranks have already submitted.
    Result<void> finish_streams() override { return {}; }

  private:
    using Pending = std::vector<std::pair<int, PostPointer>>;

    static Error io(std::string message) { return {ErrorCode::io, std::move(message)}; }

    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory,
                         const std::optional<InStream>& on_gpu) {
        Pending pending;
        for (const bool is_send : {true, false})
            for (const Message& message : is_send ? sends : receives) {
                auto post = std::make_shared<Post>(Post{.data = message.data,
                                                        .bytes = message.bytes,
                                                        .memory = memory,
                                                        .on_gpu = on_gpu});
                const Route route = is_send ? Route{rank_, message.peer, channel}
                                            : Route{message.peer, rank_, channel};
                meet(route, post, is_send);
                pending.push_back({message.peer, std::move(post)});
            }
        pending_.emplace(++last_ticket_, std::move(pending));
        return last_ticket_;
    }

    // Waits until every message of a ticket has met its counterpart.
    Result<Pending> meet_all(Ticket ticket) {
        const auto found = pending_.find(ticket);
        if (found == pending_.end())
            return Error{ErrorCode::internal, "a ticket that start() did not give"};
        Pending pending = std::move(found->second);
        pending_.erase(found);
        constexpr double kForever = 1e9; // seconds, of which the clock has room for nine times that
        const std::chrono::duration<double> patience(
            std::min(group_->options.timeout_seconds, kForever));
        const auto end = std::chrono::steady_clock::now() +
                         std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience);
        std::unique_lock lock(group_->mutex);
        for (const auto& [peer, post] : pending) {
            const auto is_over = [&, other = static_cast<std::size_t>(peer)] {
                return post->is_done || group_->has_left[other];
            };
            const bool in_time = group_->changed.wait_until(lock, end, is_over);
            if (post->is_done && !post->is_wrong) continue;
            forget(pending);
            if (post->is_wrong)
                return io(formatted("rank {} has {} bytes for rank {}, which has {}", peer,
                                    post->other_bytes, rank_, post->bytes));
            if (in_time) return io(formatted("rank {} has gone", peer));
            return io(formatted("rank {} did not answer within {} seconds", peer,
                                group_->options.timeout_seconds));
        }
        return pending;
    }

    static Result<Event> recorded(int device, void* stream) {
        auto event = cuda::make_event(device);
        if (!event) return event.error();
        auto scope = cuda::ContextScope::enter(device, stream);
        if (!scope) return scope.error();
        if (auto done = cuda::record_event(event->get(), stream); !done) return done.error();
        return std::make_shared<const cuda::OwnedEvent>(std::move(*event));
    }

    // Copies in the stream of the side that came second.
    static Result<Event> copy(const Post& from, const Post& to, const Post& first,
                              const InStream& second) {
        if (!first.on_gpu)
            return Error{ErrorCode::internal, "one side of a message is in host memory"};
        auto scope = cuda::ContextScope::enter(second.device, second.stream);
        if (!scope) return scope.error();
        if (auto done = cuda::wait_for_event(second.stream, first.on_gpu->is_there->get()); !done)
            return done.error();
        if (auto done = cuda::copy_async(to.data, from.data, from.bytes, second.stream); !done)
            return done.error();
        return recorded(second.device, second.stream);
    }

    void meet(const Route& route, const PostPointer& post, bool is_send) {
        PostPointer other;
        {
            const std::lock_guard lock(group_->mutex);
            Queues& queues = group_->routes[route];
            auto& others = is_send ? queues.receives : queues.sends;
            if (others.empty()) {
                (is_send ? queues.sends : queues.receives).push_back(post);
                return;
            }
            other = std::move(others.front());
            others.pop_front();
        }
        // Both sides' memory is held by their posts.
        const bool is_wrong = other->bytes != post->bytes;
        const Post& from = is_send ? *post : *other;
        const Post& to = is_send ? *other : *post;
        Result<Event> copied = Event();
        if (post->on_gpu)
            copied = is_wrong ? post->on_gpu->is_there : copy(from, to, *other, *post->on_gpu);
        else if (!is_wrong && from.bytes > 0)
            std::memcpy(to.data, from.data, from.bytes);
        const std::lock_guard lock(group_->mutex);
        post->other_bytes = other->bytes;
        other->other_bytes = post->bytes;
        for (Post* one : {post.get(), other.get()}) {
            one->is_wrong = is_wrong;
            one->is_done = true;
            if (copied)
                one->is_copied = *copied;
            else
                one->outcome = copied.error();
        }
        group_->changed.notify_all();
    }

    // Removes the posts, so that other ranks cannot match messages that nobody waits for.
    void forget(const Pending& pending) {
        for (auto& [route, queues] : group_->routes)
            for (const auto& [peer, post] : pending)
                for (auto* queue : {&queues.sends, &queues.receives})
                    std::erase(*queue, post);
    }

    std::shared_ptr<Group> group_;
    int rank_;
    Ticket last_ticket_ = 0;
    std::map<Ticket, Pending> pending_;
};

} // namespace

Result<std::vector<std::shared_ptr<Communicator>>>
in_process_communicators(int ranks, const CommunicatorOptions& options) {
    return guarded([&]() -> Result<std::vector<std::shared_ptr<Communicator>>> {
        if (ranks < 1 || ranks > kMaxRanks)
            return Error{ErrorCode::invalid_option,
                         formatted("{} ranks: there must be between 1 and {}", ranks, kMaxRanks)};
        auto group = std::make_shared<Group>();
        group->has_left.assign(static_cast<std::size_t>(ranks), false);
        group->options = options;
        std::vector<std::shared_ptr<Communicator>> communicators;
        for (int rank = 0; rank < ranks; ++rank)
            communicators.push_back(std::make_shared<InProcess>(group, rank));
        return communicators;
    });
}

} // namespace flexc
