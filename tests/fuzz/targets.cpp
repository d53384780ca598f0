#include <array>

#include "fuzz.h"

namespace flexc::fuzz {

std::span<const Target* const> targets() {
    static constexpr std::array kAll = {&kPrograms, &kKernels, &kIr,    &kTensors,
                                        &kRequests, &kEntries, &kPacks, &kCalls};
    return kAll;
}

} // namespace flexc::fuzz
