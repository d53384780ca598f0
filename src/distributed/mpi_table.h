// The boundary between flexc::distributed and libflexc_mpi.so: one C function that returns a table.
// No exception and no C++ library type crosses it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::distributed {

inline constexpr std::uint32_t kMpiVersion = 1;
inline constexpr char kMpiSymbol[] = "flexc_mpi_backend";

// Where a function that fails writes why, ended by a zero.
struct MpiErrorText {
    char text[512] = {};
};

struct MpiMessage {
    int peer = 0;
    void* data = nullptr;
    std::size_t bytes = 0;
};

struct MpiComm;
struct MpiBatch; // messages that were started together

struct MpiTable {
    std::uint32_t version = kMpiVersion;
    const char* library = ""; // what the MPI calls itself

    // A duplicate of *comm, of the MPI's own type MPI_Comm, or of MPI_COMM_WORLD; null on failure.
    MpiComm* (*open)(const void* comm, int* rank, int* ranks, MpiErrorText* error) = nullptr;
    // has_failed: others may wait in it for ever, so that nothing collective is called.
    void (*close)(MpiComm* comm, bool has_failed) = nullptr;
    MpiBatch* (*start)(MpiComm* comm, int channel, const MpiMessage* sends, std::size_t send_count,
                       const MpiMessage* receives, std::size_t receive_count,
                       MpiErrorText* error) = nullptr;
    // 1: all are done, and the batch is gone; 0: not yet; -1: failed.
    int (*test)(MpiBatch* batch, MpiErrorText* error) = nullptr;
    int (*unfinished_peer)(const MpiBatch* batch) = nullptr; // one of them
    // Of a batch that failed, or is late: receives are cancelled. MPI may still touch what is sent.
    void (*abandon)(MpiBatch* batch) = nullptr;
};

using MpiEntry = const MpiTable* (*)();

} // namespace flexc::distributed
