#include "place.h"

#include <cstdlib>
#include <memory>

namespace flexc::python {

namespace {

constexpr std::size_t kAlignment = 256;    // of a workspace
constexpr std::size_t kXlasAlignment = 16; // the most that it promises

bool has_device_ordinal(const xla::Api& api) {
    return api.header.size >= offsetof(xla::Api, device_ordinal) + sizeof api.device_ordinal;
}

} // namespace

std::string Place::find_gpu(const xla::Call& call) {
    call_ = &call;
    device_ = FLEXC_DEVICE_CUDA;
    if (!has_device_ordinal(*call.api))
        return "flexc.jax on GPUs needs JAX 0.6.2 or later, which tells on which GPU a call is";
    xla::DeviceOrdinalGet device = {{sizeof device, nullptr}, call.context, 0};
    if (xla::Error* error = call.api->device_ordinal(&device)) return text_of(error);
    xla::StreamGet stream = {{sizeof stream, nullptr}, call.context, nullptr};
    if (xla::Error* error = call.api->stream(&stream)) return text_of(error);
    index_ = device.ordinal;
    stream_ = stream.stream;
    return "";
}

std::string Place::text_of(xla::Error* error) const {
    xla::ErrorText text = {{sizeof text, nullptr}, error, nullptr};
    call_->api->error_text(&text);
    std::string message = text.message == nullptr ? "unknown error of XLA" : text.message;
    xla::ErrorDestroy destroy = {{sizeof destroy, nullptr}, error};
    call_->api->destroy_error(&destroy);
    return message;
}

std::string Scratch::take(std::size_t bytes) {
    if (bytes == 0) return "";
    if (place_.is_gpu()) return take_of_xla(bytes);
    memory_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (memory_ == nullptr) return "out of memory";
    workspace_.data = memory_;
    workspace_.bytes = bytes;
    return "";
}

std::string Scratch::take_of_xla(std::size_t bytes) {
    const xla::Call& call = *place_.call_;
    std::size_t space = bytes + kAlignment - kXlasAlignment;
    xla::MemoryAllocate allocate = {
        {sizeof allocate, nullptr}, call.context, space, kXlasAlignment, nullptr};
    if (xla::Error* error = call.api->allocate(&allocate))
        return "a workspace of " + std::to_string(bytes) + " bytes: " + place_.text_of(error);
    memory_ = allocate.data;
    bytes_ = space;
    workspace_.data = std::align(kAlignment, bytes, allocate.data, space);
    workspace_.bytes = bytes;
    return "";
}

Scratch::~Scratch() {
    if (!place_.is_gpu()) {
        std::free(memory_);
    } else if (memory_ != nullptr) {
        const xla::Call& call = *place_.call_;
        xla::MemoryFree free = {{sizeof free, nullptr}, call.context, bytes_, memory_};
        if (xla::Error* error = call.api->free(&free)) (void)place_.text_of(error);
    }
}

} // namespace flexc::python
