#include "flexc/peak.h"

#include <string>
#include <string_view>

#include "flexc/compile.h"

namespace flexc::cli {
namespace {

// True f32 runs on the ordinary cores, the half types on the matrix units without sparsity. The
// first name that a device's description holds is taken, so longer names stand first.
struct Peak {
    std::string_view device;
    double half, single;
};
constexpr Peak kPeaks[] = {
    {"H100 PCIe", 756, 51}, {"H100 NVL", 835, 60}, {"H100", 989, 67},
    {"H200", 989, 67},      {"A100", 312, 19.5},
};

} // namespace

std::optional<double> peak_tera_operations(Device device, DType dtype) {
    if (device.kind != Device::Kind::cuda) {
        return std::nullopt;
    }
    const auto this_device = "GPU " + std::to_string(device.index);
    for (const auto& finding : doctor()) {
        if (finding.what != this_device) {
            continue;
        }
        for (const auto& peak : kPeaks) {
            if (finding.detail.find(peak.device) != std::string::npos) {
                return dtype == DType::f32 ? peak.single : peak.half;
            }
        }
    }
    return std::nullopt;
}

} // namespace flexc::cli
