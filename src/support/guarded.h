// Keeps exceptions inside flexc: each public function runs its body in this.
#pragma once

#include <exception>
#include <new>

#include "flexc/result.h"

namespace flexc {

// Short enough to need no memory itself.
inline Error out_of_memory() { return {ErrorCode::limit, "out of memory"}; }

// Runs `body`; an exception, which would be a bug or a lack of memory, becomes an Error.
template <typename Body> auto guarded(Body&& body) noexcept -> decltype(body()) {
    try {
        try {
            return body();
        } catch (const std::bad_alloc&) {
            return out_of_memory();
        } catch (const std::exception& exception) {
            return Error{ErrorCode::internal, exception.what()};
        }
    } catch (...) { // an exception of another kind, or no memory for the text of one
        return Error{ErrorCode::internal, "an exception"};
    }
}

// The same for functions that cannot fail: they return `instead`.
template <typename Body, typename Value> Value guarded_or(Value instead, Body&& body) noexcept {
    try {
        return body();
    } catch (...) {
        return instead;
    }
}

} // namespace flexc
