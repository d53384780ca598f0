// What the libraries in this one register to be done at exit is left undone: nothing here outlives
// the process, and other threads may still be compiling and running kernels with it. Hidden, so
// that it stands for libc's in this library alone, which is never unloaded.
extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*,
                                                                  void*) noexcept {
    return 0;
}
