// Reads what launchers tell a process, and passes an id for NCCL through a file.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>

#include "flexc/distributed.h"
#include "support/env.h"
#include "support/files.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

Result<int> number_of(const char* variable) {
    const auto text = support::foreign_environment(variable);
    if (!text)
        return Error{
            ErrorCode::invalid_option,
            formatted("{} is not set: torchrun sets RANK, WORLD_SIZE and LOCAL_RANK", variable)};
    int value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size() || value < 0)
        return Error{ErrorCode::invalid_option, formatted("{}={} is no number", variable, *text)};
    return value;
}

Error io(std::string message) { return {ErrorCode::io, std::move(message)}; }

// Written atomically, so that readers never see a part of it.
Result<void> write_id(const std::string& path, const NcclId& id) {
    if (std::filesystem::exists(path))
        return io(formatted("{} is there already, maybe from an earlier run: each run has a file "
                            "of its own for NCCL's id",
                            path));
    const std::string temporary = path + ".new";
    std::FILE* const file = std::fopen(temporary.c_str(), "wb");
    const bool is_written =
        file != nullptr && std::fwrite(id.data(), 1, id.size(), file) == id.size();
    if (file == nullptr || std::fclose(file) != 0 || !is_written ||
        std::rename(temporary.c_str(), path.c_str()) != 0)
        return io(formatted("{}: {}", path, std::strerror(errno)));
    return {};
}

Result<NcclId> read_id(const std::string& path, double timeout_seconds) {
    const auto begin = std::chrono::steady_clock::now();
    while (true) {
        const support::FileRead read = support::read_file(path, NcclId{}.size());
        if (read.problem.empty() && read.bytes.size() == NcclId{}.size()) {
            NcclId id;
            std::memcpy(id.data(), read.bytes.data(), id.size());
            return id;
        }
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        if (waited.count() > timeout_seconds)
            return io(
                formatted("rank 0 did not write {} within {} seconds", path, timeout_seconds));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

} // namespace

Result<LaunchedRank> torchrun_rank() {
    return guarded([&]() -> Result<LaunchedRank> {
        const auto rank = number_of("RANK"), ranks = number_of("WORLD_SIZE"),
                   local = number_of("LOCAL_RANK");
        for (const auto* one : {&rank, &ranks, &local})
            if (!*one) return one->error();
        return LaunchedRank{.rank = *rank, .ranks = *ranks, .local_rank = *local};
    });
}

Result<std::shared_ptr<Communicator>> nccl_communicator(const std::string& path, int rank,
                                                        int ranks, Device device,
                                                        const CommunicatorOptions& options) {
    return guarded([&]() -> Result<std::shared_ptr<Communicator>> {
        auto id = rank == 0 ? nccl_id() : read_id(path, options.timeout_seconds);
        if (!id) return id.error();
        if (rank == 0)
            if (auto written = write_id(path, *id); !written) return written.error();
        auto communicator = nccl_communicator(*id, rank, ranks, device, options);
        // By now all ranks have read the file, or never will.
        if (rank == 0) (void)std::remove(path.c_str());
        return communicator;
    });
}

} // namespace flexc
