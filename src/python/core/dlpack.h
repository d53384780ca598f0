// DLPack 1.3's binary interface, as https://dmlc.github.io/dlpack states it: how array libraries
// show each other their tensors.
#pragma once

#include <cstdint>

namespace flexc::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : std::uint8_t {
    kInt = 0,
    kUInt = 1,
    kFloat = 2,
    kBfloat = 4,
    kBool = 6,
    kE4m3 = 10, // without infinities
    kE5m2 = 12
};

struct Device {
    std::int32_t type;
    std::int32_t id;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t rank;
    DataType dtype;
    std::int64_t* shape;
    std::int64_t* strides; // nullptr: contiguous
    std::uint64_t byte_offset;
};

struct Managed { // a capsule named "dltensor"
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};

struct Version {
    std::uint32_t major;
    std::uint32_t minor;
};

inline constexpr std::uint64_t kReadOnly = 1;

struct ManagedVersioned { // a capsule named "dltensor_versioned"
    Version version;
    void* context;
    void (*deleter)(ManagedVersioned*);
    std::uint64_t flags;
    Tensor tensor;
};

// The contents of a type's __dlpack_c_exchange_api__, a capsule named "dlpack_exchange_api".
struct ExchangeHeader {
    Version version;
    ExchangeHeader* older;
};
struct Exchange {
    ExchangeHeader header;
    void* allocate;
    void* managed_from_object;
    void* managed_to_object;
    int (*tensor_from_object)(void* object, Tensor* out); // borrowed
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);
};

} // namespace flexc::python::dlpack
