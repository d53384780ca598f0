#include "distributed/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cache/digest.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

constexpr std::size_t kMostParts = 8;
constexpr std::size_t kMessageBytes = 232;

// Has the same size in every version of flexc, so that a mix of versions is detected.
struct Record {
    std::array<char, 8> magic = {'f', 'l', 'e', 'x', 'c', ' ', 'r', '1'};
    std::uint32_t failed = 0;
    std::uint32_t code = 0;
    std::array<cache::Digest, kMostParts> parts{};
    std::array<char, kMessageBytes> message{}; // cut where it is longer
};
static_assert(sizeof(Record) == 504);

} // namespace

Agreement::Agreement(Communicator& communicator, Result<void> own,
                     std::span<const AgreedPart> agreed)
    : communicator_(&communicator), own_(std::move(own)) {
    for (const AgreedPart& part : agreed)
        names_.push_back(part.name);
}

Agreement Agreement::start(Communicator& communicator, const Result<void>& own,
                           std::span<const AgreedPart> agreed) {
    Agreement agreement(communicator, own, agreed);
    if (communicator.ranks() == 1) return agreement;
    Record record;
    if (own) {
        for (std::size_t i = 0; i < agreed.size(); ++i)
            record.parts[i] = cache::digest_of(agreed[i].text);
    } else {
        record.failed = 1;
        record.code = static_cast<std::uint32_t>(own.error().code);
        const std::string& message = own.error().message;
        std::copy_n(message.begin(), std::min(message.size(), kMessageBytes - 1),
                    record.message.begin());
    }
    agreement.gathering_ = Gathering::start(communicator, std::as_bytes(std::span(&record, 1)));
    return agreement;
}

Result<void> Agreement::finish() {
    if (!gathering_) return own_;
    const auto gathered = *gathering_ ? (*gathering_)->finish() : (*gathering_).error();
    if (!own_) return own_; // with its whole text, whatever became of the others
    if (!gathered) return gathered.error();
    const Communicator& communicator = *communicator_;
    const Record like; // of this version
    std::vector<Record> all(static_cast<std::size_t>(communicator.ranks()));
    std::memcpy(all.data(), gathered->data(), gathered->size());
    const auto number = [&](const Record& one) { return &one - all.data(); };
    for (const Record& one : all)
        if (one.magic != like.magic)
            return Error{ErrorCode::invalid_option,
                         formatted("rank {} has another version of flexc than rank {}", number(one),
                                   communicator.rank())};
    for (const Record& one : all)
        if (one.failed != 0)
            return Error{static_cast<ErrorCode>(one.code),
                         formatted("rank {}: {}", number(one), one.message.data())};
    for (std::size_t i = 0; i < names_.size(); ++i)
        for (const Record& one : all)
            if (one.parts[i] != all[0].parts[i])
                return Error{ErrorCode::invalid_option,
                             formatted("rank {} has {} that rank 0 does not have: all ranks of a "
                                       "call must have the same",
                                       number(one), names_[i])};
    return {};
}

} // namespace flexc::distributed
