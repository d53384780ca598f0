#include "api/kernel_entry.h"

#include <charconv>

#include "cuda/nvrtc.h"
#include "flexc/version.h"
#include "support/text.h"

namespace flexc::api {

namespace {

// Adds a digest for flexc's own files, which was computed at build time, and the text for all
// others.
void add_file(cache::KeyBuilder& key, std::string_view path, const cuda::SourceFile& file) {
    const bool is_ours = !file.digest.empty();
    key.field(path, is_ours ? "sha256" : "text")
        .field("", is_ours ? file.digest : file.text.view());
}

// The digest of all headers inside flexc, of which a translation has all or none. Found once: there
// are more than a hundred.
const cache::Digest& digest_of_headers(const cuda::Translation& translation) {
    static const cache::Digest kDigest = [&] {
        cache::KeyBuilder all;
        for (const cuda::SourceFile& header : translation.headers)
            if (!header.digest.empty()) add_file(all, header.path.view(), header);
        return cache::digest_of(all.text());
    }();
    return kDigest;
}

cache::KeyBuilder sources(const cuda::Translation& translation) {
    cache::KeyBuilder all;
    add_file(all, "main", translation.main);
    bool has_ours = false;
    for (const cuda::SourceFile& header : translation.headers) {
        has_ours = has_ours || !header.digest.empty();
        if (header.digest.empty()) add_file(all, header.path.view(), header);
    }
    if (has_ours) all.field("headers", digest_of_headers(translation));
    return all;
}

} // namespace

cache::Digest source_of(const cuda::Translation& translation) {
    return cache::digest_of(sources(translation).text());
}

// Everything that reaches the compiler. The compiler's version is not included: a cubin stays valid
// when NVRTC is updated, and finding the version would load a library of 100 MB on every cache hit.
Identity identify(const cuda::Translation& translation, std::string_view arch) {
    cache::KeyBuilder key;
    key.field("kind", "cubin").field("flexc", FLEXC_VERSION);
    for (const std::string& option : cuda::nvrtc_options(arch))
        key.field("option", option);
    const cache::KeyBuilder source = sources(translation);
    return {.key = key.field("source", source.text()).finish(),
            .source = cache::digest_of(source.text())};
}

// The entry's metadata as text: registers, spills, shared bytes, compile time, number of
// configurations refused before this one, spills of helpers, digest of this one's source (64
// digits), and its schedule if one was given: "168 0 98304 412.5 0 0 0123...cdef "
cache::Entry entry_of(const CompiledKernel& one) {
    const KernelInfo& info = one.kernel.info;
    return {.metadata =
                formatted("{} {} {} {} {} {} {} {}", info.registers, info.spill_bytes,
                          info.shared_bytes, info.compile_ms, one.refused, info.helper_spill_bytes,
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
        !next(info.compile_ms) || !next(one.refused) || !next(info.helper_spill_bytes))
        return {};
    const auto space = text.find(' ');
    const auto made_of = cache::Digest::parse(text.substr(0, space));
    if (!made_of || space == std::string_view::npos) return {};
    one.made_of = *made_of;
    text.remove_prefix(space + 1);
    one.schedule = plan::read_schedule(text);
    if (!one.schedule && !text.empty()) return {};
    one.kernel.cubin = std::move(entry.payload);
    return one;
}

} // namespace flexc::api
