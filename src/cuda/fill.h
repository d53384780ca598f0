// A complete program for NVRTC: a template, the headers it may include, and the generated one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flexc/result.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// A text with a zero behind it, as NVRTC takes it: a view of one inside flexc, or one that all
// copies share. Hundreds of files are passed with each kernel; nothing copies them.
class SourceText {
  public:
    SourceText() = default;
    SourceText(std::string text)
        : owned_(std::make_shared<const std::string>(std::move(text))), view_(*owned_) {}
    SourceText(const char* text) : SourceText(std::string(text)) {}
    // `text` is never destroyed and ends in a zero.
    static SourceText inside_flexc(std::string_view text) {
        SourceText result;
        result.view_ = text;
        return result;
    }
    std::string_view view() const { return view_; }
    const char* c_str() const { return view_.data(); }

  private:
    std::shared_ptr<const std::string> owned_; // null for a text inside flexc
    std::string_view view_ = "";
};

struct SourceFile {
    SourceText path; // as #include names it
    SourceText text;
    std::string_view digest = {}; // of a file inside flexc; else empty
};

struct Translation {
    SourceFile main;                 // its path is for messages
    std::vector<SourceFile> headers; // sorted by path
};

// Templates are the embedded ones, or the files below FLEXC_TEMPLATE_DIR if it is set.
Result<Translation> fill_template(const plan::KernelConfig& config, std::string mod_text);

// The files alone, sorted by path.
Result<std::vector<SourceFile>> template_files();

} // namespace flexc::cuda
