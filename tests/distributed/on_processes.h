// What ranks that are processes are tested for, by whatever transport.
#pragma once

#include <cstdint>
#include <memory>

#include "distributed/problem.h"

namespace flexc::test {

enum class Processes : std::uint8_t { ragged, learned_slopes, learned_bias, sinks };
// Called by all ranks together. Each computes the whole by itself too, on its device.
void check_processes(const std::shared_ptr<Communicator>& communicator, Device device,
                     Processes what);
// Masks with mods, by every exchange, on CPUs; 1, 2 and 3 ranks together have every mask with every
// mod.
void check_matrix(const std::shared_ptr<Communicator>& communicator);
void check_refusals(const std::shared_ptr<Communicator>& communicator, Device device);

// Runs the program's tests, for which the communicator is opened, and closes it. 77: the library of
// the transport is missing.
int run_tests(Result<std::shared_ptr<Communicator>> opened,
              std::shared_ptr<Communicator>& communicator, int argc, char** argv);

} // namespace flexc::test
