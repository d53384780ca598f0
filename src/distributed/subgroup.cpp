#include "distributed/subgroup.h"

#include <algorithm>
#include <utility>

namespace flexc::distributed {

namespace {

class Subgroup final : public Communicator {
  public:
    Subgroup(std::shared_ptr<Communicator> whole, std::vector<int> members)
        : whole_(std::move(whole)), members_(std::move(members)) {}

    int rank() const override {
        return static_cast<int>(std::ranges::find(members_, whole_->rank()) - members_.begin());
    }
    int ranks() const override { return static_cast<int>(members_.size()); }

    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        return whole_->start(channel, of_whole(sends), of_whole(receives), std::move(memory));
    }
    Result<void> wait(Ticket ticket) override { return whole_->wait(ticket); }

    bool has_streams() const override { return whole_->has_streams(); }
    Result<Ticket> start_on_stream(Stream stream, int channel, std::span<const Message> sends,
                                   std::span<const Message> receives,
                                   std::shared_ptr<void> memory) override {
        return whole_->start_on_stream(stream, channel, of_whole(sends), of_whole(receives),
                                       std::move(memory));
    }
    Result<void> wait_on_stream(Ticket ticket, Stream stream) override {
        return whole_->wait_on_stream(ticket, stream);
    }
    Result<void> finish_streams() override { return whole_->finish_streams(); }

  private:
    std::vector<Message> of_whole(std::span<const Message> messages) const {
        std::vector<Message> result(messages.begin(), messages.end());
        for (Message& message : result)
            message.peer = members_[static_cast<std::size_t>(message.peer)];
        return result;
    }

    std::shared_ptr<Communicator> whole_;
    std::vector<int> members_;
};

} // namespace

std::shared_ptr<Communicator> subgroup(std::shared_ptr<Communicator> whole,
                                       std::vector<int> members) {
    return std::make_shared<Subgroup>(std::move(whole), std::move(members));
}

} // namespace flexc::distributed
