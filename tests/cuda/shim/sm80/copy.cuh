// Stands in for the device file of the same name: copies are there at once.
#pragma once

#include "sm90/warpgroup.cuh"

namespace sm80 {

// Copies of pieces that do not lie on their own in either memory.
static int unaligned_copies = 0;
template <int kBytes> void copy_async(unsigned to, const void* from, bool valid) {
    if (to % kBytes != 0 || reinterpret_cast<unsigned long long>(from) % kBytes != 0)
        ++unaligned_copies;
    std::memset(memory_of_block + to, 0, kBytes);
    if (valid) std::memcpy(memory_of_block + to, from, kBytes);
}
template <typename E> void store_shared(unsigned to, E x) {
    std::memcpy(memory_of_block + to, &x, sizeof x);
}

} // namespace sm80
