#include "take_lock.h"

#include <pthread.h>
#include <unistd.h>

static void sleep_for_good(void* unused) {
    (void)unused;
    while (1)
        pause();
}

/* A cleanup handler of C needs no unwinder: that of a static libstdc++ aborts as a thread ends. */
void flexc_take_lock(PyThreadState* state) {
    pthread_cleanup_push(sleep_for_good, NULL);
    PyEval_RestoreThread(state);
    pthread_cleanup_pop(0);
}
