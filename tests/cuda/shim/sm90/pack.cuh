// Stands in for the device file of the same name.
#pragma once

#include "common/element.cuh"

namespace sm90 {

template <typename E> unsigned pack(E, float low, float high) {
    return flexc_from_float<E>(low).bits | static_cast<unsigned>(flexc_from_float<E>(high).bits)
                                               << 16;
}

} // namespace sm90
