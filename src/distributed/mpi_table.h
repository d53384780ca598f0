// The boundary between flexc::distributed and libflexc_mpi.so: one C function that returns a table.
// No exception and no C++ library type crosses it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::distributed {

inline constexpr std::uint32_t kMpiVersion = 1;
inline constexpr char kMpiSymbol[] = "flexc_mpi_backend";

// Where a function that fails writes the reason, zero-terminated.
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
    // has_failed: other ranks may wait in it forever, so nothing collective is called.
    void (*close)(MpiComm* comm, bool has_failed) = nullptr;
    MpiBatch* (*start)(MpiComm* comm, int channel, const MpiMessage* sends, std::size_t send_count,
                       const MpiMessage* receives, std::size_t receive_count,
                       MpiErrorText* error) = nullptr;
    // Returns 1 if all are done, and frees the batch; 0 if not yet; -1 on failure.
    int (*test)(MpiBatch* batch, MpiErrorText* error) = nullptr;
    int (*unfinished_peer)(const MpiBatch* batch) = nullptr; // one of them
    // Gives up a batch that failed or is late: receives are cancelled, but MPI may still read what
    // is being sent.
    void (*abandon)(MpiBatch* batch) = nullptr;
};

using MpiEntry = const MpiTable* (*)();

} // namespace flexc::distributed
