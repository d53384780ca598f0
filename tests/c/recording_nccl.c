/* NCCL without a GPU: ranks are there when they ask, messages are written down instead of sent. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct unique_id {
    char bytes[128];
} unique_id;

typedef struct communicator {
    int rank, ranks;
} communicator;

static char recorded[4096];

static int record(const char* format, ...) {
    const size_t used = strlen(recorded);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(recorded + used, sizeof recorded - used, format, arguments);
    va_end(arguments);
    return 0;
}

static int open_one(void** comm, int rank, int ranks) {
    communicator* made = malloc(sizeof *made);
    if (made == NULL) return 2;
    made->rank = rank;
    made->ranks = ranks;
    *comm = made;
    return 0;
}

/* Hands over what was recorded since the last call. */
EXPORT void flexc_take_recorded_messages(char* text, size_t room) {
    snprintf(text, room, "%s", recorded);
    recorded[0] = '\0';
}

EXPORT int ncclGetVersion(int* version) { return *version = 21800, 0; }
EXPORT const char* ncclGetErrorString(int status) { return status == 0 ? "fine" : "wrong"; }
EXPORT const char* ncclGetLastError(void* comm) { return comm == NULL ? "" : "of the last call"; }
EXPORT int ncclGetUniqueId(unique_id* id) {
    for (int i = 0; i < 128; ++i)
        id->bytes[i] = (char)(i + 1);
    return 0;
}
EXPORT int ncclCommInitRankConfig(void** comm, int ranks, unique_id id, int rank, void* config) {
    record("init %d of %d by %d..%d%s\n", rank, ranks, id.bytes[0], id.bytes[127],
           config == NULL ? " without config" : "");
    return open_one(comm, rank, ranks);
}
EXPORT int ncclCommSplit(void* comm, int color, int key, void** made, void* config) {
    const communicator* lent = comm;
    record("split %d:%d%s\n", color, key, config == NULL ? " without config" : "");
    return open_one(made, lent->rank, lent->ranks);
}
EXPORT int ncclCommFinalize(void* comm) { return comm == NULL; }
EXPORT int ncclCommDestroy(void* comm) { return free(comm), record("destroy\n"); }
EXPORT int ncclCommAbort(void* comm) { return free(comm), record("abort\n"); }
EXPORT int ncclCommGetAsyncError(void* comm, int* state) { return *state = 0, comm == NULL; }
EXPORT int ncclCommCount(void* comm, int* ranks) {
    return *ranks = ((const communicator*)comm)->ranks, 0;
}
EXPORT int ncclCommCuDevice(void* comm, int* device) { return *device = 0, comm == NULL; }
EXPORT int ncclCommUserRank(void* comm, int* rank) {
    return *rank = ((const communicator*)comm)->rank, 0;
}
EXPORT int ncclSend(const void* data, size_t count, int type, int peer, void* comm, void* stream) {
    (void)data, (void)comm, (void)stream;
    return record("send %zu of type %d to %d\n", count, type, peer);
}
EXPORT int ncclRecv(void* data, size_t count, int type, int peer, void* comm, void* stream) {
    (void)data, (void)comm, (void)stream;
    return record("receive %zu of type %d from %d\n", count, type, peer);
}
EXPORT int ncclGroupStart(void) { return 0; }
EXPORT int ncclGroupEnd(void) { return 0; }
