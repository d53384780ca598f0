#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>

#include <doctest/doctest.h>

#include "cuda/nvrtc.h"

int main(int argc, char** argv) {
    // ctest reports this exit code as skipped.
    constexpr int kSkipped = 77;
    if (const auto info = flexc::cuda::nvrtc_info(); !info) {
        std::fprintf(stderr,
                     "*** NO CUDA KERNEL WAS COMPILED, NONE OF THE TEMPLATES IS TESTED: ***\n%s\n",
                     info.error().message.c_str());
        return kSkipped;
    }
    return doctest::Context(argc, argv).run();
}
