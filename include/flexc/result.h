// Errors as values. No exception leaves flexc; the members are named as in std::expected, so that
// this can become an alias of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace flexc {

enum class ErrorCode : std::uint8_t {
    syntax,          // the text is not a program; message holds the place and the caret
    invalid_option,  // an option, shape, type or pointer that the call cannot accept
    limit,           // a stated limit was exceeded
    unsupported,     // right, but not on this device or build
    library_missing, // NVRTC, the driver or the CPU backend was not found; message lists the search
    compile_failed,  // a backend compiler refused; message holds its log
    device,          // the driver reported an error
    io,              // a file could not be read or written
    internal,        // a bug in flexc
    cancelled,       // by the caller's CancelToken, or because the process ends
};

std::string_view name(ErrorCode code);

struct Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;
};

template <typename T> class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool has_value() const noexcept { return state_.index() == 0; }
    explicit operator bool() const noexcept { return has_value(); }

    // Precondition: has_value().
    T& operator*() & { return *std::get_if<0>(&state_); }
    const T& operator*() const& { return *std::get_if<0>(&state_); }
    T&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
    T* operator->() { return std::get_if<0>(&state_); }
    const T* operator->() const { return std::get_if<0>(&state_); }

    // Precondition: !has_value().
    const Error& error() const { return *std::get_if<1>(&state_); }
    Error& error() { return *std::get_if<1>(&state_); }

    T value_or(T other) const& { return has_value() ? **this : std::move(other); }

  private:
    std::variant<T, Error> state_;
};

template <> class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : failed_(true), error_(std::move(error)) {}

    bool has_value() const noexcept { return !failed_; }
    explicit operator bool() const noexcept { return has_value(); }
    const Error& error() const { return error_; }
    Error& error() { return error_; }

  private:
    bool failed_ = false;
    Error error_;
};

} // namespace flexc
