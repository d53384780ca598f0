// What a generic kernel knows of the tile that it computes.
#pragma once

#include "common/place.cuh"
#include "sm80/arguments.h"

namespace sm80 {

// Everything around an element, for short.
struct Surroundings {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    SequenceLength length;
};

} // namespace sm80
