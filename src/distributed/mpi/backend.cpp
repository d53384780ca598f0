// libflexc_mpi.so: messages by MPI behind one C function. The only file that knows mpi.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include <mpi.h>

#include "distributed/mpi_table.h"

namespace flexc::distributed {

struct MpiComm {
    MPI_Comm comm = MPI_COMM_NULL;
};

struct MpiBatch {
    struct Part {
        int peer = 0;
        int bytes = 0;
        bool is_receive = false;
        bool is_done = false;
    };
    std::vector<MPI_Request> requests;
    std::vector<Part> parts;
};

namespace {

// MPI counts in int.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

bool is_usable() {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

void say(MpiErrorText* error, const char* text) {
    std::strncpy(error->text, text, sizeof error->text - 1);
}

bool succeeded(int code, MpiErrorText* error) {
    if (code == MPI_SUCCESS) return true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    say(error, text);
    return false;
}

void finalize() {
    if (is_usable()) MPI_Finalize();
}

bool initialize(MpiErrorText* error) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized != 0) {
        say(error, "MPI has been finalised already");
        return false;
    }
    if (initialized != 0) return true;
    int provided = 0;
    if (!succeeded(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), error))
        return false;
    std::atexit(finalize);
    if (provided >= MPI_THREAD_FUNNELED) return true;
    say(error, "this MPI does not offer MPI_THREAD_FUNNELED");
    return false;
}

MpiComm* open(const void* comm, int* rank, int* ranks, MpiErrorText* error) {
    if (comm == nullptr ? !initialize(error) : !is_usable()) {
        if (comm != nullptr) say(error, "the caller's MPI is not initialised, or not any more");
        return nullptr;
    }
    auto result = std::unique_ptr<MpiComm>(new (std::nothrow) MpiComm);
    if (result == nullptr) return nullptr;
    MPI_Comm whole = MPI_COMM_WORLD;
    if (comm != nullptr) std::memcpy(&whole, comm, sizeof whole);
    if (!succeeded(MPI_Comm_dup(whole, &result->comm), error)) return nullptr;
    MPI_Comm_set_errhandler(result->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(result->comm, rank);
    MPI_Comm_size(result->comm, ranks);
    return result.release();
}

void close(MpiComm* comm, bool has_failed) {
    if (!has_failed && is_usable()) MPI_Comm_free(&comm->comm);
    delete comm;
}

void abandon(MpiBatch* batch) {
    if (is_usable())
        for (std::size_t i = 0; i < batch->requests.size(); ++i) {
            MPI_Request& request = batch->requests[i];
            if (request == MPI_REQUEST_NULL) continue;
            if (batch->parts[i].is_receive) MPI_Cancel(&request);
            MPI_Request_free(&request); // without waiting, for the other side may be gone
        }
    delete batch;
}

MpiBatch* start(MpiComm* comm, int channel, const MpiMessage* sends, std::size_t send_count,
                const MpiMessage* receives, std::size_t receive_count, MpiErrorText* error) {
    auto batch = std::unique_ptr<MpiBatch, void (*)(MpiBatch*)>(nullptr, abandon);
    try {
        batch.reset(new MpiBatch);
        // Receives first, so that messages arrive in place without a copy.
        for (const bool is_receive : {true, false}) {
            const MpiMessage* messages = is_receive ? receives : sends;
            const std::size_t count = is_receive ? receive_count : send_count;
            for (std::size_t i = 0; i < count; ++i) {
                std::size_t begin = 0;
                do {
                    const std::size_t bytes = std::min(messages[i].bytes - begin, kMostBytes);
                    auto* data = static_cast<char*>(messages[i].data) + begin;
                    batch->requests.push_back(MPI_REQUEST_NULL);
                    batch->parts.push_back({messages[i].peer, static_cast<int>(bytes), is_receive});
                    MPI_Request& request = batch->requests.back();
                    const int code =
                        is_receive ? MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE,
                                               messages[i].peer, channel, comm->comm, &request)
                                   : MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE,
                                               messages[i].peer, channel, comm->comm, &request);
                    if (!succeeded(code, error)) return nullptr;
                    begin += bytes;
                } while (begin < messages[i].bytes);
            }
        }
    } catch (const std::bad_alloc&) {
        say(error, "out of memory");
        return nullptr;
    }
    return batch.release();
}

int test(MpiBatch* batch, MpiErrorText* error) {
    bool all_done = true;
    for (std::size_t i = 0; i < batch->requests.size(); ++i) {
        MpiBatch::Part& part = batch->parts[i];
        if (part.is_done) continue;
        int is_done = 0;
        MPI_Status status;
        if (!succeeded(MPI_Test(&batch->requests[i], &is_done, &status), error)) return -1;
        if (is_done == 0) {
            all_done = false;
            continue;
        }
        part.is_done = true;
        int bytes = part.bytes;
        if (part.is_receive) MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (bytes != part.bytes) {
            say(error, "a message has another size than was expected");
            return -1;
        }
    }
    if (!all_done) return 0;
    delete batch;
    return 1;
}

int unfinished_peer(const MpiBatch* batch) {
    const auto part = std::ranges::find(batch->parts, false, &MpiBatch::Part::is_done);
    return part == batch->parts.end() ? -1 : part->peer;
}

} // namespace

} // namespace flexc::distributed

extern "C" __attribute__((visibility("default"))) const flexc::distributed::MpiTable*
flexc_mpi_backend() {
    using namespace flexc::distributed;
    static const MpiTable table = [] {
        static char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
        int length = 0;
        MPI_Get_library_version(version, &length);
        MpiTable result;
        result.library = version;
        result.open = open;
        result.close = close;
        result.start = start;
        result.test = test;
        result.unfinished_peer = unfinished_peer;
        result.abandon = abandon;
        return result;
    }();
    return &table;
}
