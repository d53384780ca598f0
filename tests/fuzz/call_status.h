// What calls of the C interface return, and the error that each leaves.
#pragma once

#include <string>

#include "call_arguments.h"

namespace flexc::fuzz {

class CallStatus {
  public:
    explicit CallStatus(Bytes& bytes) : choices_(bytes) {}
    CallStatus(const CallStatus&) = delete;
    CallStatus& operator=(const CallStatus&) = delete;
    ~CallStatus() { flexc_error_free(error_); }

    // For a call's `error`; sometimes it wants none.
    flexc_error** out() {
        flexc_error_free(error_);
        error_ = nullptr;
        return choices_.chance(90) ? &error_ : nullptr;
    }
    // Whether the call succeeded. No call may fail without a reason.
    bool done(flexc_status status) {
        require(status >= FLEXC_OK && status <= FLEXC_ERROR_CANCELLED &&
                    status != FLEXC_ERROR_INTERNAL,
                "status " + std::to_string(status) + ": " + message());
        if (error_ != nullptr) {
            require(status != FLEXC_OK, "a call that is right left an error");
            require(flexc_error_status(error_) == status, "the error has another status");
            require(!message().empty(), "the error says nothing");
        }
        return status == FLEXC_OK;
    }
    void accepted(flexc_status status, const char* what) {
        require(done(status), std::string(what) + " is refused: " + message());
    }
    void refused(flexc_status status, const char* what) {
        require(!done(status), std::string(what) + " is accepted");
    }

  private:
    std::string message() const { return flexc_error_message(error_); }

    Bytes& choices_;
    flexc_error* error_ = nullptr;
};

} // namespace flexc::fuzz
