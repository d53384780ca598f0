#include "runtime/length_reader.h"

#include <array>

namespace flexc::runtime {

Result<LengthReader> LengthReader::load(cuda::Module module, const plan::KernelConfig& config,
                                        bool starts_early) {
    auto read = module.function(std::string(config.entry), 0);
    if (!read) return read.error();
    auto divide = module.function("flexc_divide_keys", 0);
    if (!divide) return divide.error();
    return LengthReader(std::move(module), *read, *divide,
                        static_cast<unsigned>(config.block.threads()), starts_early);
}

Result<void> LengthReader::read(const LengthArrays& arrays, const SequenceRecords& to,
                                void* stream) const {
    // The driver copies them before launch() returns.
    const std::array<void*, 2> arguments = {const_cast<LengthArrays*>(&arrays),
                                            const_cast<SequenceRecords*>(&to)};
    if (arrays.requests > 0)
        if (auto done = read_.launch({.x = static_cast<unsigned>(arrays.requests)}, {.x = threads_},
                                     0, stream, arguments);
            !done)
            return done;
    return divide_.launch({}, {.x = threads_}, 0, stream, arguments,
                          starts_early_ && arrays.requests > 0);
}

} // namespace flexc::runtime
