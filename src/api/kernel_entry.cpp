#include "api/kernel_entry.h"

#include <charconv>

#include "cuda/nvrtc.h"
#include "flexc/version.h"
#include "support/text.h"

namespace flexc::api {

// Digests of files, so that half a megabyte of templates is not copied for each kernel.
cache::Digest source_of(const cuda::Translation& translation) {
    cache::DigestBuilder text;
    text.field("main", cache::digest_of(translation.text));
    for (const cuda::SourceFile& header : translation.headers)
        text.field(header.path, cache::digest_of(header.text));
    return text.finish();
}

// Whatever reaches the compiler. Its own version is not here: a cubin stays right when NVRTC is
// updated, and finding the version would load a library of 100 MB that a hit does not need.
Identity identify(const cuda::Translation& translation, std::string_view arch) {
    const cache::Digest source = source_of(translation);
    cache::DigestBuilder key;
    key.field("kind", "cubin").field("flexc", FLEXC_VERSION).field("source", source);
    for (const std::string& option : cuda::nvrtc_options(arch))
        key.field("option", option);
    return {.key = key.finish(), .source = source};
}

// Registers, spills, shared bytes and compile time, how many configurations were refused before
// this one, the source of this one, and its schedule if that was given, as text:
// "168 0 98304 412.5 0 0123456789abcdef0123456789abcdef "
cache::Entry entry_of(const CompiledKernel& one) {
    const KernelInfo& info = one.kernel.info;
    return {.metadata = formatted("{} {} {} {} {} {} {}", info.registers, info.spill_bytes,
                                  info.shared_bytes, info.compile_ms, one.refused,
                                  one.made_of.hex(), one.schedule ? text_of(*one.schedule) : ""),
            .payload = one.kernel.cubin};
}

std::optional<CompiledKernel> read_entry(cache::Entry entry) {
    CompiledKernel one;
    KernelInfo& info = one.kernel.info;
    std::string_view text = entry.metadata;
    const auto next = [&text](auto& value) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc()) return false;
        text.remove_prefix(static_cast<std::size_t>(end - text.data()));
        if (!text.empty()) text.remove_prefix(1);
        return true;
    };
    if (!next(info.registers) || !next(info.spill_bytes) || !next(info.shared_bytes) ||
        !next(info.compile_ms) || !next(one.refused))
        return {};
    const auto space = text.find(' ');
    const auto made_of = cache::Digest::parse(text.substr(0, space));
    if (!made_of || space == std::string_view::npos) return {};
    one.made_of = *made_of;
    text.remove_prefix(space + 1);
    one.schedule = cuda::read_schedule(text);
    if (!one.schedule && !text.empty()) return {};
    one.kernel.cubin = std::move(entry.payload);
    return one;
}

} // namespace flexc::api
