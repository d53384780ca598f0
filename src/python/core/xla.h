// The binary interface of XLA's foreign functions, version 0, as its xla/ffi/api/c_api.h states it:
// what XLA gives a function that a computation calls. Structs begin with their size and a list of
// extensions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::python::xla {

struct Extension {
    std::size_t size;
    std::int32_t type; // 1: it asks for the function's Metadata
    Extension* next;
};

struct Header {
    std::size_t size;
    Extension* extensions;
};

struct Version {
    Header header;
    int major;
    int minor;
};

struct Metadata {
    std::size_t size;
    Version version;
    std::uint32_t traits;
};

struct MetadataExtension {
    Extension base;
    Metadata* metadata;
};

struct Error;
struct ErrorCreate {
    Header header;
    const char* message;
    std::int32_t code;
};
inline constexpr std::int32_t kInvalidArgument = 3;

struct ErrorText {
    Header header;
    Error* error;
    const char* message; // lives as long as the error
};

struct ErrorDestroy {
    Header header;
    Error* error;
};

struct StreamGet {
    Header header;
    void* context;
    void* stream;
};

struct MemoryAllocate {
    Header header;
    void* context;
    std::size_t size;
    std::size_t alignment; // 16 at most
    void* data;
};

struct MemoryFree {
    Header header;
    void* context;
    std::size_t size;
    void* data;
};

struct DeviceOrdinalGet {
    Header header;
    void* context;
    std::int32_t ordinal;
};

// Later versions have more at its end; its size says how much of it there is.
struct Api {
    Header header;
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorCreate*);
    void (*error_text)(ErrorText*);
    void (*destroy_error)(ErrorDestroy*);
    const void* register_handler;
    Error* (*stream)(StreamGet*);
    const void* types_and_states[4];
    Error* (*allocate)(MemoryAllocate*);
    Error* (*free)(MemoryFree*);
    const void* threads_futures_and_run[6];
    Error* (*device_ordinal)(DeviceOrdinalGet*);
};

struct Text {
    const char* data;
    std::size_t size;
};

struct Scalar {
    std::int32_t dtype;
    void* value;
};

struct Buffer {
    Header header;
    std::int32_t dtype;
    void* data;
    std::int64_t rank;
    std::int64_t* dims;
};

struct Values { // arguments and results, all of them buffers
    Header header;
    std::int64_t count;
    std::int32_t* types;
    void** values;
};

struct Attributes { // in the order of their names
    Header header;
    std::int64_t count;
    std::int32_t* types;
    Text** names;
    void** values;
};
inline constexpr std::int32_t kScalar = 3;
inline constexpr std::int32_t kText = 4;
inline constexpr std::int32_t kPred = 1;
inline constexpr std::int32_t kF64 = 12;

struct Call {
    Header header;
    const Api* api;
    void* context;
    std::int32_t stage;
    Values arguments;
    Values results;
    Attributes attributes;
};
inline constexpr std::int32_t kExecute = 3;

} // namespace flexc::python::xla
