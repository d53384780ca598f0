// NCCL's entry points, with our own prototypes, so that its headers are not needed to build.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "flexc/result.h"

namespace flexc::distributed {

struct NcclUniqueId {
    std::array<std::byte, 128> bytes{};
};

// ncclConfig_t of version 2.18; later versions accept it as a prefix.
struct NcclConfig {
    static constexpr int kUnset = -2147483647 - 1;
    std::size_t size = sizeof(NcclConfig);
    unsigned magic = 0xcafebeef;
    unsigned version = 21800;
    int blocking = 0;
    int cluster_size = kUnset, least_blocks = kUnset, most_blocks = kUnset;
    const char* network = nullptr;
    int split_share = kUnset;
};

inline constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
inline constexpr int kNcclBytes = 0; // ncclInt8

// FLEXC_NCCL(member, symbol, parameters); all return ncclResult_t.
#define FLEXC_NCCL_FUNCTIONS(FLEXC_NCCL)                                                           \
    FLEXC_NCCL(get_version, "ncclGetVersion", (int*))                                              \
    FLEXC_NCCL(get_unique_id, "ncclGetUniqueId", (NcclUniqueId*))                                  \
    FLEXC_NCCL(init_rank, "ncclCommInitRankConfig", (void**, int, NcclUniqueId, int, NcclConfig*)) \
    FLEXC_NCCL(split, "ncclCommSplit", (void*, int, int, void**, NcclConfig*))                     \
    FLEXC_NCCL(finalize, "ncclCommFinalize", (void*))                                              \
    FLEXC_NCCL(destroy, "ncclCommDestroy", (void*))                                                \
    FLEXC_NCCL(abort, "ncclCommAbort", (void*))                                                    \
    FLEXC_NCCL(async_error, "ncclCommGetAsyncError", (void*, int*))                                \
    FLEXC_NCCL(count, "ncclCommCount", (void*, int*))                                              \
    FLEXC_NCCL(device, "ncclCommCuDevice", (void*, int*))                                          \
    FLEXC_NCCL(user_rank, "ncclCommUserRank", (void*, int*))                                       \
    FLEXC_NCCL(send, "ncclSend", (const void*, std::size_t, int, int, void*, void*))               \
    FLEXC_NCCL(receive, "ncclRecv", (void*, std::size_t, int, int, void*, void*))                  \
    FLEXC_NCCL(group_start, "ncclGroupStart", ())                                                  \
    FLEXC_NCCL(group_end, "ncclGroupEnd", ())

struct NcclApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define FLEXC_NCCL(member, symbol, parameters) int(*member) parameters = nullptr;
    FLEXC_NCCL_FUNCTIONS(FLEXC_NCCL)
#undef FLEXC_NCCL
    const char* (*error_string)(int) = nullptr;
    const char* (*last_error)(void*) = nullptr;

    std::string path;
};

// The library is opened once.
const Result<NcclApi>& nccl_api();

} // namespace flexc::distributed
