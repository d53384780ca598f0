#include "cuda/fill.h"

#include <algorithm>
#include <filesystem>

#include "support/embedded.h"
#include "support/env.h"
#include "support/files.h"

namespace flexc::cuda {

namespace {

constexpr std::uint64_t kMaxTemplateBytes = 1 << 24;

std::string_view path_of(const SourceFile& file) { return file.path.view(); }

Result<std::vector<SourceFile>> files_below(const std::filesystem::path& folder) {
    std::vector<SourceFile> files;
    std::error_code failure;
    std::filesystem::recursive_directory_iterator entry(folder, failure), end;
    for (; !failure && entry != end; entry.increment(failure)) {
        const std::string extension = entry->path().extension().string();
        if (extension != ".cu" && extension != ".cuh" && extension != ".h" && extension != ".def")
            continue;
        support::FileRead file = support::read_file(entry->path().string(), kMaxTemplateBytes);
        if (!file.problem.empty())
            return Error{ErrorCode::io, "cannot read the template " + entry->path().string() +
                                            ": " + file.problem};
        files.push_back(
            {entry->path().lexically_relative(folder).generic_string(), std::move(file.bytes)});
    }
    if (failure)
        return Error{ErrorCode::io,
                     "cannot list the templates in " + folder.string() + ": " + failure.message()};
    std::ranges::sort(files, {}, path_of);
    return files;
}

} // namespace

Result<std::vector<SourceFile>> template_files() {
    if (const auto folder = support::environment(support::Variable::template_dir))
        return files_below(*folder);
    std::vector<SourceFile> files;
    files.reserve(embedded::templates().size());
    for (const embedded::EmbeddedFile& file : embedded::templates())
        files.push_back({SourceText::inside_flexc(file.path), SourceText::inside_flexc(file.text),
                         file.digest});
    return files;
}

Result<Translation> fill_template(const plan::KernelConfig& config, std::string mod_text) {
    auto files = template_files();
    if (!files) return files.error();
    Translation translation;
    translation.headers.reserve(files->size() + 1);
    bool found = false;
    for (SourceFile& file : *files) {
        if (path_of(file) == config.template_path) {
            translation.main = std::move(file);
            found = true;
        } else if (!path_of(file).ends_with(".cu")) {
            translation.headers.push_back(std::move(file));
        }
    }
    if (!found)
        return Error{ErrorCode::internal,
                     "there is no template '" + std::string(config.template_path) + "'"};
    SourceFile mod{"mod.cuh", std::move(mod_text)};
    translation.headers.insert(
        std::ranges::upper_bound(translation.headers, path_of(mod), {}, path_of), std::move(mod));
    return translation;
}

} // namespace flexc::cuda
