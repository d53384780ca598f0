// A complete program for NVRTC: a template, the headers it may include, and the generated one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flexc/result.h"
#include "plan/kernel.h"

namespace flexc::cuda {

struct SourceFile {
    std::string path; // as #include names it
    std::string text;
    std::string_view digest = {}; // of a file inside flexc; else empty
};

struct Translation {
    SourceFile main;                 // its path is for messages
    std::vector<SourceFile> headers; // sorted by path
};

// Templates are the embedded ones, or the files below FLEXC_TEMPLATE_DIR if it is set.
Result<Translation> fill_template(const plan::KernelConfig& config, std::string mod_text);

// The files alone, which a cache key must include in addition to the generated text.
Result<std::vector<SourceFile>> template_files();

} // namespace flexc::cuda
