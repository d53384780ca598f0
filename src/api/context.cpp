#include "api/context.h"

namespace flexc::api {

Context& Context::instance() {
    static auto* context = new Context;
    return *context;
}

} // namespace flexc::api
