// Ignores what the libraries linked into this one register for exit: nothing here outlives the
// process, and other threads may still be compiling and running kernels. The symbol is hidden, so
// it replaces libc's only inside this library, which is never unloaded.
extern "C" __attribute__((visibility("hidden"))) int __cxa_atexit(void (*)(void*), void*,
                                                                  void*) noexcept {
    return 0;
}
