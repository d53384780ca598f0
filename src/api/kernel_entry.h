// The cache's form of a CUDA kernel.
#pragma once

#include <optional>
#include <string_view>

#include "cache/digest.h"
#include "cache/entry_format.h"
#include "cuda/fill.h"
#include "plan/schedule.h"
#include "runtime/cuda_plan.h"

namespace flexc::api {

// The key and identity of a kernel in the cache.
struct Identity {
    cache::Key key;
    cache::Digest source;
};
Identity identify(const cuda::Translation& translation, std::string_view arch);
// The digest of the source alone.
cache::Digest source_of(const cuda::Translation& translation);

struct CompiledKernel {
    runtime::CudaKernel kernel;
    Identity id;           // of the first choice
    cache::Digest made_of; // the source of the configuration that it became
    int refused = 0;       // configurations that compiled badly before this one
    std::optional<plan::ForwardSchedule> schedule; // that was not flexc's own choice
    bool cached = false;
};

cache::Entry entry_of(const CompiledKernel& one);
// Reads everything except the identity and what follows from the configuration. Nothing if
// entry_of() did not write the entry.
std::optional<CompiledKernel> read_entry(cache::Entry entry);

} // namespace flexc::api
