#include "cuda/fill.h"

#include <algorithm>
#include <filesystem>

#include "support/embedded.h"
#include "support/env.h"
#include "support/files.h"

namespace flexc::cuda {

namespace {

constexpr std::uint64_t kMaxTemplateBytes = 1 << 24;

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
    return files;
}

} // namespace

Result<std::vector<SourceFile>> template_files() {
    std::vector<SourceFile> files;
    if (const auto folder = support::environment(support::Variable::template_dir)) {
        auto found = files_below(*folder);
        if (!found) return found.error();
        files = std::move(*found);
    } else {
        for (const embedded::EmbeddedFile& file : embedded::templates())
            files.push_back({std::string(file.path), std::string(file.text), file.digest});
    }
    std::ranges::sort(files, {}, &SourceFile::path);
    return files;
}

Result<Translation> fill_template(const plan::KernelConfig& config, std::string mod_text) {
    auto files = template_files();
    if (!files) return files.error();
    Translation translation;
    bool found = false;
    for (SourceFile& file : *files) {
        if (file.path == config.template_path) {
            translation.main = std::move(file);
            found = true;
        } else if (!file.path.ends_with(".cu")) {
            translation.headers.push_back(std::move(file));
        }
    }
    if (!found)
        return Error{ErrorCode::internal,
                     "there is no template '" + std::string(config.template_path) + "'"};
    translation.headers.push_back({"mod.cuh", std::move(mod_text)});
    std::ranges::sort(translation.headers, {}, &SourceFile::path);
    return translation;
}

} // namespace flexc::cuda
