// Defaults for a communicator without streams.
#include "flexc/distributed.h"

namespace flexc {

namespace {

Error without_streams() {
    return {ErrorCode::unsupported,
            "this communicator has no messages in the memory of GPUs: its has_streams() says so"};
}

} // namespace

Result<Communicator::Ticket> Communicator::start_on_stream(Stream /*stream*/, int /*channel*/,
                                                           std::span<const Message> /*sends*/,
                                                           std::span<const Message> /*receives*/,
                                                           std::shared_ptr<void> /*memory*/) {
    return without_streams();
}
Result<void> Communicator::wait_on_stream(Ticket /*ticket*/, Stream /*stream*/) {
    return without_streams();
}
Result<void> Communicator::finish_streams() { return without_streams(); }

} // namespace flexc
