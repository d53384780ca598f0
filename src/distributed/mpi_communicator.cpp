// Ranks over MPI: finds libflexc_mpi.so, and waits with a timeout.
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "distributed/mpi_table.h"
#include "flexc/distributed.h"
#include "support/dynlib.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

using distributed::MpiBatch;
using distributed::MpiErrorText;
using distributed::MpiMessage;
using distributed::MpiTable;

constexpr const char* kFileNames[] = {"libflexc_mpi.so." FLEXC_SOVERSION, "libflexc_mpi.so"};

const MpiTable* table_of(const support::DynamicLibrary& library) {
    const MpiTable* (*entry)() = nullptr;
    return library.symbol(distributed::kMpiSymbol, entry) ? entry() : nullptr;
}

std::string objection(const support::DynamicLibrary& library) {
    const MpiTable* table = table_of(library);
    if (table == nullptr) return std::string("has no function ") + distributed::kMpiSymbol;
    if (table->version != distributed::kMpiVersion)
        return formatted("is of version {} of the interface, not {}", table->version,
                         distributed::kMpiVersion);
    return "";
}

// Looks beside the program or library first, as for the CPU backend.
Result<const MpiTable*> backend() {
    // Never destroyed: a communicator may live until the process ends.
    static auto& mutex = *new std::mutex;
    static const MpiTable* found = nullptr;
    const std::lock_guard lock(mutex);
    if (found != nullptr) return found;
    std::vector<std::string> near;
    for (const std::string folder : {"${ORIGIN}/", "${ORIGIN}/../lib/", "${ORIGIN}/../lib/*/",
                                     "${ORIGIN}/../lib64/", FLEXC_INSTALL_LIBDIR "/"})
        for (const char* name : kFileNames)
            near.push_back(folder + name);
    support::LibrarySearch search =
        support::find_library({.name = "the MPI backend",
                               .exact_path = support::Variable::mpi_backend,
                               .loaded_prefix = {},
                               .sonames = {},
                               .patterns = near,
                               .objection = objection});
    if (!search && !support::environment(support::Variable::mpi_backend)) {
        auto far = support::find_library({.name = "the MPI backend",
                                          .exact_path = {},
                                          .loaded_prefix = {},
                                          .sonames = {std::begin(kFileNames), std::end(kFileNames)},
                                          .patterns = {},
                                          .objection = objection});
        far.attempts.insert(far.attempts.begin(), search.attempts.begin(), search.attempts.end());
        search = std::move(far);
    }
    if (!search)
        return Error{ErrorCode::library_missing,
                     "the MPI backend was not found; it is built where an MPI is installed, such "
                     "as Debian's libopenmpi-dev. Tried:\n" +
                         search.describe()};
    found = table_of(*search.library);
    return found;
}

class MpiCommunicator final : public Communicator {
  public:
    MpiCommunicator(const MpiTable* table, distributed::MpiComm* comm, int rank, int ranks,
                    const CommunicatorOptions& options)
        : table_(table), comm_(comm), rank_(rank), ranks_(ranks), options_(options) {}

    ~MpiCommunicator() override {
        has_failed_ = has_failed_ || !pending_.empty();
        for (auto& [ticket, pending] : pending_)
            give_up(pending);
        table_->close(comm_, has_failed_);
    }

    int rank() const override { return rank_; }
    int ranks() const override { return ranks_; }

    Result<Ticket> start(int channel, std::span<const Message> sends,
                         std::span<const Message> receives, std::shared_ptr<void> memory) override {
        return guarded([&]() -> Result<Ticket> {
            const auto messages = [](std::span<const Message> from) {
                std::vector<MpiMessage> to;
                to.reserve(from.size());
                for (const Message& message : from)
                    to.push_back({message.peer, message.data, message.bytes});
                return to;
            };
            const auto out = messages(sends), in = messages(receives);
            MpiErrorText error;
            MpiBatch* batch =
                table_->start(comm_, channel, out.data(), out.size(), in.data(), in.size(), &error);
            if (batch == nullptr) return failed(error.text);
            pending_.emplace(++last_ticket_, Pending{batch, std::move(memory)});
            return last_ticket_;
        });
    }

    Result<void> wait(Ticket ticket) override {
        return guarded([&]() -> Result<void> {
            const auto found = pending_.find(ticket);
            if (found == pending_.end())
                return Error{ErrorCode::internal, "a ticket that start() did not give"};
            Pending pending = std::move(found->second);
            pending_.erase(found);
            const auto begin = std::chrono::steady_clock::now();
            while (true) {
                MpiErrorText error;
                const int peer = table_->unfinished_peer(pending.batch);
                const int answer = table_->test(pending.batch, &error);
                if (answer == 1) return {};
                const std::chrono::duration<double> waited =
                    std::chrono::steady_clock::now() - begin;
                if (answer == 0 && waited.count() < options_.timeout_seconds) {
                    // Polls quickly at first, then leaves the processor to ranks that compute.
                    if (waited.count() > 1e-4)
                        std::this_thread::sleep_for(std::chrono::microseconds(50));
                    continue;
                }
                give_up(pending);
                if (answer < 0) return failed(formatted("rank {}: {}", peer, error.text));
                return failed(formatted("rank {} did not answer within {} seconds", peer,
                                        options_.timeout_seconds));
            }
        });
    }

  private:
    struct Pending {
        MpiBatch* batch = nullptr;
        std::shared_ptr<void> memory;
    };

    Error failed(std::string message) {
        has_failed_ = true;
        return {ErrorCode::io, std::move(message)};
    }

    void give_up(Pending& pending) {
        table_->abandon(pending.batch);
        // Never freed: MPI may read what is being sent, and write what is being received, at any
        // time.
        static auto& mutex = *new std::mutex;
        static auto& kept = *new std::vector<std::shared_ptr<void>>;
        const std::lock_guard lock(mutex);
        kept.push_back(std::move(pending.memory));
    }

    const MpiTable* table_;
    distributed::MpiComm* comm_;
    int rank_, ranks_;
    CommunicatorOptions options_;
    bool has_failed_ = false;
    Ticket last_ticket_ = 0;
    std::map<Ticket, Pending> pending_;
};

} // namespace

Result<std::shared_ptr<Communicator>> mpi_communicator(const void* comm,
                                                       const CommunicatorOptions& options) {
    return guarded([&]() -> Result<std::shared_ptr<Communicator>> {
        const auto table = backend();
        if (!table) return table.error();
        MpiErrorText error;
        int rank = 0, ranks = 0;
        distributed::MpiComm* opened = (*table)->open(comm, &rank, &ranks, &error);
        if (opened == nullptr)
            return Error{ErrorCode::io, formatted("{}: {}", (*table)->library, error.text)};
        return std::shared_ptr<Communicator>(
            std::make_shared<MpiCommunicator>(*table, opened, rank, ranks, options));
    });
}

} // namespace flexc
