// Ranks over NCCL, a GPU each: messages are ordered by streams, and small host messages go through
// GPU memory.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/owned.h"
#include "distributed/device_pool.h"
#include "distributed/nccl_api.h"
#include "flexc/distributed.h"
#include "support/amounts.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using distributed::Bytes;
using distributed::DevicePool;
using distributed::NcclApi;
using distributed::NcclConfig;
using distributed::NcclUniqueId;

Error io(std::string message) { return {ErrorCode::io, std::move(message)}; }

// Polls quickly at first, then leaves the processor to others.
class Patience {
  public:
    explicit Patience(double seconds) : seconds_(seconds) {}
    // False when there is no time left.
    bool pause() const {
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin_;
        if (waited.count() > seconds_) return false;
        constexpr double kSoon = 10e-3; // beside which a pause is short
        if (waited.count() > kSoon)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        else
            std::this_thread::yield();
        return true;
    }

  private:
    double seconds_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// A host message in GPU memory, followed by a mark that shows its arrival.
struct Staged {
    static constexpr std::uint64_t kMark = 0x6d2072656c666578;
    static constexpr std::size_t kAlignment = 16;

    int peer = 0;
    void* host = nullptr;
    std::size_t bytes = 0;
    std::size_t at = 0; // of all that are staged together

    static std::size_t room_for(std::size_t bytes) {
        return support::rounded_up(bytes + sizeof kMark, kAlignment);
    }
    std::size_t room() const { return room_for(bytes); }
    std::size_t mark() const { return at + room() - sizeof kMark; }
};

// The messages of one call of start().
struct Batch {
    cuda::OwnedEvent done;
    std::shared_ptr<void> memory;
    std::vector<int> peers;
    // Host messages: what is sent, then what arrives.
    Bytes staging;
    std::size_t staged_bytes = 0;
    std::vector<Staged> arrivals;
};

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(const NcclApi& api, void* comm, int device, int rank, int ranks,
                     cuda::OwnedStream stream, const CommunicatorOptions& options)
        : api_(api), comm_(comm), device_(device), rank_(rank), ranks_(ranks),
          stream_(std::move(stream)), pool_(std::make_shared<DevicePool>(device)),
          options_(options) {}

    ~NcclCommunicator() override {
        auto scope = cuda::ContextScope::enter(device_);
        if (!scope || comm_ == nullptr) return;
        if (batches_.empty() && unfinished_.empty() && is_finalized())
            api_.destroy(comm_);
        else
            abort();
    }

    int rank() const override { return rank_; }
    int ranks() const override { return ranks_; }

    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        return guarded([&]() -> Result<Ticket> {
            auto scope = cuda::ContextScope::enter(device_);
            if (!scope) return scope.error();
            std::vector<Message> out, in;
            Batch batch;
            if (auto done = stage(sends, receives, batch, out, in); !done) return done.error();
            batch.memory = std::move(memory);
            return run(std::move(batch), stream_.get(), channel, out, in);
        });
    }

    Result<void> wait(Ticket ticket) override {
        return guarded([&]() -> Result<void> {
            auto batch = take(ticket);
            if (!batch) return batch.error();
            auto scope = cuda::ContextScope::enter(device_);
            if (!scope) return scope.error();
            if (auto done = await(*batch); !done) return done;
            const auto arrived = staged(*batch);
            if (!arrived) return arrived.error();
            for (const Staged& one : batch->arrivals)
                if (one.bytes > 0) std::memcpy(one.host, arrived->data() + one.at, one.bytes);
            return {};
        });
    }

    bool has_streams() const override { return true; }

    Result<Ticket> start_on_stream(Stream stream, int channel, std::span<const Message> sends,
                                   std::span<const Message> receives,
                                   std::shared_ptr<void> memory) override {
        return guarded([&]() -> Result<Ticket> {
            auto scope = cuda::ContextScope::enter(device_, stream.handle);
            if (!scope) return scope.error();
            Batch batch;
            batch.memory = std::move(memory);
            return run(std::move(batch), stream.handle, channel, sends, receives);
        });
    }

    Result<void> wait_on_stream(Ticket ticket, Stream stream) override {
        return guarded([&]() -> Result<void> {
            auto batch = take(ticket);
            if (!batch) return batch.error();
            auto scope = cuda::ContextScope::enter(device_, stream.handle);
            if (!scope) return scope.error();
            if (auto done = cuda::wait_for_event(stream.handle, batch->done.get()); !done)
                return done;
            batch->memory.reset(); // later work in that memory comes after the event
            unfinished_.push_back(std::move(*batch));
            return {};
        });
    }

    Result<void> finish_streams() override {
        return guarded([&]() -> Result<void> {
            auto scope = cuda::ContextScope::enter(device_);
            if (!scope) return scope.error();
            while (!unfinished_.empty()) {
                const Batch batch = std::move(unfinished_.front());
                unfinished_.pop_front();
                if (auto done = await(batch); !done) return done;
            }
            return {};
        });
    }

    bool runs_ahead() const override { return true; }
    void abandon() override { abort(); }

  private:
    // Whether everything that was started has ended.
    bool is_finalized() const {
        int state = api_.finalize(comm_);
        const Patience patience(options_.timeout_seconds);
        while (state == distributed::kNcclInProgress && patience.pause())
            if (const int asked = api_.async_error(comm_, &state);
                asked != distributed::kNcclSuccess)
                return false;
        return state == distributed::kNcclSuccess;
    }

    // Gives every host message its place in GPU memory, and copies those to be sent there.
    Result<void> stage(std::span<const Message> sends, std::span<const Message> receives,
                       Batch& batch, std::vector<Message>& out, std::vector<Message>& in) {
        std::vector<Staged> departures;
        const auto place = [&](std::span<const Message> messages, std::vector<Staged>& to) {
            for (const Message& message : messages) {
                to.push_back({message.peer, message.data, message.bytes, batch.staged_bytes});
                batch.staged_bytes += to.back().room();
            }
        };
        place(sends, departures);
        place(receives, batch.arrivals);
        auto room = pool_->allocate(batch.staged_bytes);
        if (!room) return room.error();
        batch.staging = std::move(*room);
        const auto add = [&](const std::vector<Staged>& from, std::vector<Message>& to) {
            for (const Staged& one : from)
                to.push_back({one.peer, batch.staging.get() + one.at, one.room()});
        };
        add(departures, out);
        add(batch.arrivals, in);
        std::vector<std::byte> image(batch.staged_bytes);
        for (const Staged& one : departures) {
            if (one.bytes > 0) std::memcpy(image.data() + one.at, one.host, one.bytes);
            std::memcpy(image.data() + one.mark(), &Staged::kMark, sizeof Staged::kMark);
        }
        return cuda::copy_to_device_async(batch.staging.get(), image.data(), image.size(),
                                          stream_.get());
    }

    // Does not wait for the caller's streams.
    Result<std::vector<std::byte>> staged(const Batch& batch) const {
        std::vector<std::byte> image(batch.staged_bytes);
        if (auto done = cuda::copy_to_host_async(image.data(), batch.staging.get(), image.size(),
                                                 stream_.get());
            !done)
            return done.error();
        if (auto done = cuda::synchronize_stream(stream_.get()); !done) return done.error();
        return image;
    }

    // NCCL matches messages of two ranks in the order in which they were started, whatever their
    // channel, so all ranks must start the same ones in the same order.
    Result<Ticket> run(Batch batch, void* stream, int /*channel*/, std::span<const Message> sends,
                       std::span<const Message> receives) {
        if (comm_ == nullptr) return io("this communicator has failed before");
        const auto add_peers = [&](std::span<const Message> messages) {
            for (const Message& message : messages)
                if (std::ranges::find(batch.peers, message.peer) == batch.peers.end())
                    batch.peers.push_back(message.peer);
        };
        add_peers(sends);
        add_peers(receives);
        auto event = cuda::make_event(device_);
        if (!event) return event.error();
        batch.done = std::move(*event);
        if (!batch.peers.empty()) {
            int status = api_.group_start();
            for (const Message& message : sends)
                if (status == distributed::kNcclSuccess)
                    status = api_.send(message.data, message.bytes, distributed::kNcclBytes,
                                       message.peer, comm_, stream);
            for (const Message& message : receives)
                if (status == distributed::kNcclSuccess)
                    status = api_.receive(message.data, message.bytes, distributed::kNcclBytes,
                                          message.peer, comm_, stream);
            const int ended = api_.group_end();
            if (status == distributed::kNcclSuccess) status = ended;
            if (auto done = settle(status, batch.peers); !done) return done.error();
        }
        if (auto done = cuda::record_event(batch.done.get(), stream); !done) return done.error();
        batches_.emplace(++last_ticket_, std::move(batch));
        return last_ticket_;
    }

    Result<Batch> take(Ticket ticket) {
        const auto found = batches_.find(ticket);
        if (found == batches_.end())
            return Error{ErrorCode::internal, "a ticket that start() did not give"};
        Batch batch = std::move(found->second);
        batches_.erase(found);
        return batch;
    }

    // Waits until NCCL has connected the ranks and launched its kernels.
    Result<void> settle(int status, const std::vector<int>& peers) {
        const Patience patience(options_.timeout_seconds);
        while (status == distributed::kNcclInProgress) {
            if (!patience.pause()) return late(peers);
            int state = 0;
            const int asked = api_.async_error(comm_, &state);
            status = asked == distributed::kNcclSuccess ? state : asked;
        }
        return status == distributed::kNcclSuccess ? Result<void>{} : failed(status, peers);
    }

    Result<void> await(const Batch& batch) {
        const Patience patience(options_.timeout_seconds);
        while (true) {
            const auto happened = cuda::has_happened(batch.done.get());
            if (!happened) return happened.error();
            if (*happened) return {};
            if (comm_ == nullptr) return io("this communicator has failed before");
            int state = 0;
            if (api_.async_error(comm_, &state) == distributed::kNcclSuccess &&
                state != distributed::kNcclSuccess && state != distributed::kNcclInProgress)
                return failed(state, batch.peers);
            if (patience.pause()) continue;
            abort();
            return late(missing(batch));
        }
    }

    // Returns the peers whose messages have not arrived, by their marks.
    std::vector<int> missing(const Batch& batch) const {
        const auto image = staged(batch);
        if (!image) return batch.peers;
        std::vector<int> peers;
        for (const Staged& one : batch.arrivals)
            if (std::memcmp(image->data() + one.mark(), &Staged::kMark, sizeof Staged::kMark) != 0)
                peers.push_back(one.peer);
        return peers.empty() ? batch.peers : peers;
    }

    Error late(const std::vector<int>& peers) {
        abort();
        return io(formatted("{} did not answer within {} seconds", named(peers),
                            options_.timeout_seconds));
    }
    Error failed(int status, const std::vector<int>& peers) {
        const char* text = comm_ == nullptr ? nullptr : api_.last_error(comm_);
        std::string message = formatted("{}: NCCL: {}{}{}", named(peers), api_.error_string(status),
                                        text == nullptr ? "" : "; ", text == nullptr ? "" : text);
        abort();
        return io(std::move(message));
    }
    static std::string named(const std::vector<int>& peers) {
        if (peers.size() == 1) return formatted("rank {}", peers[0]);
        return formatted("one of the ranks [{}]", joined(peers, ", "));
    }

    // Aborts what NCCL still runs on the device. The communicator is unusable afterwards.
    void abort() {
        if (comm_ != nullptr) api_.abort(std::exchange(comm_, nullptr));
    }

    const NcclApi& api_;
    void* comm_;
    int device_, rank_, ranks_;
    cuda::OwnedStream stream_; // of the host's messages
    std::shared_ptr<DevicePool> pool_;
    CommunicatorOptions options_;
    Ticket last_ticket_ = 0;
    std::map<Ticket, Batch> batches_;
    std::deque<Batch> unfinished_; // that streams wait for
};

// Waits until all ranks are connected. asked: the communicator whose state is polled; its owner
// aborts it on failure.
Result<void> settle(const NcclApi& api, void* asked, int status,
                    const CommunicatorOptions& options) {
    const Patience patience(options.timeout_seconds);
    while (status == distributed::kNcclInProgress) {
        if (!patience.pause())
            return io(formatted("not all ranks came within {} seconds", options.timeout_seconds));
        int state = 0;
        const int answer = api.async_error(asked, &state);
        status = answer == distributed::kNcclSuccess ? state : answer;
    }
    if (status == distributed::kNcclSuccess) return {};
    const char* text = api.last_error(asked);
    return io(formatted("NCCL: {}; {}", api.error_string(status), text == nullptr ? "" : text));
}

Result<std::shared_ptr<Communicator>> finished(const NcclApi& api, void* comm, int device, int rank,
                                               int ranks, const CommunicatorOptions& options) {
    auto stream = cuda::make_stream(device, cuda::Priority::greatest);
    if (!stream) {
        api.abort(comm);
        return stream.error();
    }
    return std::shared_ptr<Communicator>(std::make_shared<NcclCommunicator>(
        api, comm, device, rank, ranks, std::move(*stream), options));
}

} // namespace

Result<NcclId> nccl_id() {
    return guarded([&]() -> Result<NcclId> {
        const auto& api = distributed::nccl_api();
        if (!api) return api.error();
        NcclUniqueId id;
        const int status = api->get_unique_id(&id);
        if (status != distributed::kNcclSuccess)
            return io(formatted("NCCL: {}", api->error_string(status)));
        return id.bytes;
    });
}

Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclId& id, int rank, int ranks,
                                                        Device device,
                                                        const CommunicatorOptions& options) {
    return guarded([&]() -> Result<std::shared_ptr<Communicator>> {
        if (ranks < 1 || rank < 0 || rank >= ranks)
            return Error{ErrorCode::invalid_option, formatted("rank {} of {}", rank, ranks)};
        if (device.kind == Device::Kind::cpu)
            return Error{ErrorCode::invalid_option, "ranks by NCCL have a GPU each"};
        const auto& api = distributed::nccl_api();
        if (!api) return api.error();
        auto scope = cuda::ContextScope::enter(device.index);
        if (!scope) return scope.error();
        void* comm = nullptr;
        NcclConfig config;
        const int status = api->init_rank(&comm, ranks, {id}, rank, &config);
        if (auto done = settle(*api, comm, status, options); !done) {
            if (comm != nullptr) api->abort(comm);
            return done.error();
        }
        return finished(*api, comm, device.index, rank, ranks, options);
    });
}

Result<std::shared_ptr<Communicator>> nccl_communicator(void* lent,
                                                        const CommunicatorOptions& options) {
    return guarded([&]() -> Result<std::shared_ptr<Communicator>> {
        if (lent == nullptr) return Error{ErrorCode::invalid_option, "the ncclComm_t is missing"};
        const auto& api = distributed::nccl_api();
        if (!api) return api.error();
        int rank = 0, ranks = 0, device = 0;
        for (const int status :
             {api->user_rank(lent, &rank), api->count(lent, &ranks), api->device(lent, &device)})
            if (status != distributed::kNcclSuccess)
                return io(formatted("the caller's ncclComm_t: {}", api->error_string(status)));
        auto scope = cuda::ContextScope::enter(device);
        if (!scope) return scope.error();
        void* comm = nullptr;
        NcclConfig config;
        const int status = api->split(lent, 0, rank, &comm, &config);
        auto done = settle(*api, lent, status, options);
        if (done && comm != nullptr)
            done = settle(*api, comm, distributed::kNcclInProgress, options);
        if (!done) {
            if (comm != nullptr) api->abort(comm);
            return done.error();
        }
        return finished(*api, comm, device, rank, ranks, options);
    });
}

} // namespace flexc
