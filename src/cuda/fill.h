// A complete program for NVRTC: a template, the headers it may include, and the generated one.
#pragma once

#include <string>
#include <vector>

#include "cuda/config.h"
#include "flexc/result.h"

namespace flexc::cuda {

struct SourceFile {
    std::string path; // as #include names it
    std::string text;
};

struct Translation {
    std::string name; // of the main file, for messages
    std::string text;
    std::vector<SourceFile> headers; // sorted by path
};

// Templates are those inside flexc, or the files below FLEXC_TEMPLATE_DIR when it is set.
Result<Translation> fill_template(const KernelConfig& config, std::string mod_text);

// The files alone: what a cache key has to hold beside the generated text.
Result<std::vector<SourceFile>> template_files();

} // namespace flexc::cuda
