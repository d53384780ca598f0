// Common code of all functions of the C ABI: they read structs, call the C++ API, and convert its
// result to a status. No exception crosses the ABI.
#pragma once

#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/c_convert.h"
#include "flexc/flexc.h"
#include "flexc/flexc_c.h"
#include "support/guarded.h"

struct flexc_error {
    flexc_status status;
    std::string message;
};

struct flexc_text {
    std::string text;
};

namespace flexc::api {

flexc_status report(const Error& failure, flexc_error** error);
flexc_status report_out_of_memory(flexc_error** error) noexcept;

template <typename Body> flexc_status call(flexc_error** error, Body&& body) noexcept {
    if (error != nullptr) *error = nullptr;
    try {
        const Result<void> result = guarded(body);
        return result ? FLEXC_OK : report(result.error(), error);
    } catch (const std::bad_alloc&) {
        return report_out_of_memory(error);
    } catch (...) {
        if (error != nullptr) *error = new (std::nothrow) flexc_error{FLEXC_ERROR_INTERNAL, {}};
        return FLEXC_ERROR_INTERNAL;
    }
}

// nullptr when there is no such index.
inline const char* text_at(const std::vector<std::string>& texts, std::size_t index) {
    return index < texts.size() ? texts[index].c_str() : nullptr;
}

// C strings, valid as long as the texts.
inline std::vector<const char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<const char*> pointers;
    for (const std::string& text : texts)
        pointers.push_back(text.c_str());
    return pointers;
}

// The options of a compile, with the C callback behind a C++ sink. Lives as long as the call.
class CompileCall {
  public:
    Result<void> read(const char* text, const flexc_compile_options* given) {
        if (text == nullptr) return invalid("text is NULL");
        auto read = read_options(given);
        if (!read) return read.error();
        options_ = std::move(*read);
        if (given == nullptr) return {};
        const auto known = read_struct(given, "options");
        if (!known) return known.error();
        function_ = known->log;
        user_ = known->log_user;
        if (function_ != nullptr) options_.log = {&CompileCall::write, this};
        return {};
    }
    const CompileOptions& options() const { return options_; }

  private:
    static void write(void* self, LogLevel level, std::string_view text) {
        const auto& call = *static_cast<const CompileCall*>(self);
        call.function_(call.user_, static_cast<std::int32_t>(level), text.data(), text.size());
    }

    CompileOptions options_;
    flexc_log_function function_ = nullptr;
    void* user_ = nullptr;
};

} // namespace flexc::api
