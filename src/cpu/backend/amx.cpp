#include "cpu/backend/amx.h"

#include "cpu/backend/avx512.h"
#include "flexc/types.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace flexc::cpu::amx {

namespace {

// Asks the kernel once, for the whole process. It refuses where an alternate signal stack is too
// small for the tiles.
bool is_permitted() {
    constexpr int kRequest = 0x1023, kTileData = 18; // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool is = ::syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    return is;
}

bool has_amx() {
    // __builtin_cpu_supports() of GCC 12 does not know AMX: bits of CPUID's leaf 7.
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (edx & (kBf16 | kTile)) == (kBf16 | kTile);
}

} // namespace

bool suits(int dim) {
    static const bool is_there = avx512::suits(kPairs) && has_amx();
    return is_there && dim % kPairs == 0 && dim <= kMaxHeadDim && is_permitted();
}

} // namespace flexc::cpu::amx

#else

namespace flexc::cpu::amx {

bool suits(int) { return false; }

} // namespace flexc::cpu::amx

#endif
