#include "distributed/on_device.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cuda/driver.h"

namespace flexc::test {

namespace {

void succeed(const Result<void>& result) {
    if (!result) throw std::runtime_error(result.error().message);
}
bool is_cuda(Device device) { return device.kind == Device::Kind::cuda; }

} // namespace

OnDevice::OnDevice(Device device) : device_(device) {
    if (!is_cuda(device)) return;
    auto scope = cuda::ContextScope::enter(device.index);
    REQUIRE(scope);
    auto stream = cuda::create_stream();
    REQUIRE(stream);
    stream_.handle = *stream;
}

OnDevice::~OnDevice() {
    if (stream_.handle == nullptr) return;
    auto scope = cuda::ContextScope::enter(device_.index);
    if (scope) (void)cuda::destroy_stream(stream_.handle);
}

TensorView OnDevice::of(const TensorView& host) {
    if (!is_cuda(device_) || !host) return host;
    const std::size_t bytes = static_cast<std::size_t>(host.elements()) * size_of(host.dtype);
    auto memory = DeviceMemory::allocate(device_, bytes);
    if (!memory) throw std::runtime_error(memory.error().message);
    succeed(memory->upload(host.data, bytes));
    succeed(synchronize(device_)); // other streams would not wait for it
    TensorView view = host;
    view.data = memory->data();
    copies_.push_back({host.data, std::move(*memory), host.is_read_only});
    return view;
}

std::vector<NamedTensor> OnDevice::of(std::vector<NamedTensor> host) {
    for (NamedTensor& one : host)
        one.tensor = of(one.tensor);
    return host;
}

void OnDevice::take_back() {
    if (!is_cuda(device_)) return;
    auto scope = cuda::ContextScope::enter(device_.index);
    if (!scope) throw std::runtime_error(scope.error().message);
    succeed(cuda::synchronize_stream(stream_.handle));
    for (Copy& copy : copies_)
        if (!copy.is_read_only) succeed(copy.memory.download(copy.host, copy.memory.bytes()));
}

bool has_gpu() {
    const char* only = std::getenv("FLEXC_TEST_DEVICE");
    if (only != nullptr) return std::string_view(only) == "cuda";
    return default_device().kind == Device::Kind::cuda;
}

} // namespace flexc::test
