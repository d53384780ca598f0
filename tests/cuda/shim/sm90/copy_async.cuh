// Stands in for the device file of the same name: copies are there at once.
#pragma once

#include "sm90/barrier.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

inline void copy_word_async(unsigned to, const void* from) {
    std::memcpy(memory_of_block + to, from, 4);
}
inline void wait_for_copies() {}

} // namespace sm90
