#include "distributed/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cache/digest.h"
#include "distributed/collectives.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

constexpr std::size_t kMostParts = 8;
constexpr std::size_t kMessageBytes = 232;

// The same size in every version, so that other versions of flexc are found out.
struct Record {
    std::array<char, 8> magic = {'f', 'l', 'e', 'x', 'c', ' ', 'r', '1'};
    std::uint32_t failed = 0;
    std::uint32_t code = 0;
    std::array<cache::Digest, kMostParts> parts{};
    std::array<char, kMessageBytes> message{}; // cut where it is longer
};
static_assert(sizeof(Record) == 504);

} // namespace

Result<void> agree(Communicator& communicator, const Result<void>& own,
                   std::span<const AgreedPart> agreed) {
    if (communicator.ranks() == 1) return own;
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
    const auto gathered = all_gather(communicator, std::as_bytes(std::span(&record, 1)));
    if (!own) return own; // with its whole text, whatever became of the others
    if (!gathered) return gathered.error();
    std::vector<Record> all(static_cast<std::size_t>(communicator.ranks()));
    std::memcpy(all.data(), gathered->data(), gathered->size());
    const auto number = [&](const Record& one) { return &one - all.data(); };
    for (const Record& one : all)
        if (one.magic != record.magic)
            return Error{ErrorCode::invalid_option,
                         formatted("rank {} has another version of flexc than rank {}", number(one),
                                   communicator.rank())};
    for (const Record& one : all)
        if (one.failed != 0)
            return Error{static_cast<ErrorCode>(one.code),
                         formatted("rank {}: {}", number(one), one.message.data())};
    for (std::size_t i = 0; i < agreed.size(); ++i)
        for (const Record& one : all)
            if (one.parts[i] != all[0].parts[i])
                return Error{ErrorCode::invalid_option,
                             formatted("rank {} has {} that rank 0 does not have: all ranks of a "
                                       "call must have the same",
                                       number(one), agreed[i].name)};
    return {};
}

} // namespace flexc::distributed
