// Arguments of the C interface: right ones, and what is made of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "flexc/flexc_c.h"
#include "guarded_tensors.h"

namespace flexc::fuzz {

inline constexpr std::array<std::int64_t, 16> kExtremes = {
    0,
    1,
    -1,
    2,
    3,
    63,
    0x7fffffff,
    0x80000000LL,
    -0x80000000LL,
    0x100000000LL,
    1LL << 40,
    1LL << 53,
    1LL << 62,
    -(1LL << 62),
    std::numeric_limits<std::int64_t>::max(),
    std::numeric_limits<std::int64_t>::min()};

// With room behind it for a caller that is newer than the library.
template <typename Struct> struct Roomy {
    Struct value{};
    std::array<unsigned char, 64> rest{};
};

template <typename Struct> Struct sized() {
    Struct value{};
    value.struct_size = sizeof(Struct);
    return value;
}

inline constexpr std::int32_t kHeadDim = 4;

// Small, on the CPU, and without a trace on the disk.
inline flexc_compile_options usual_options() {
    auto options = sized<flexc_compile_options>();
    options.dtype = FLEXC_F32;
    options.head_dim = kHeadDim;
    options.device = FLEXC_DEVICE_CPU;
    options.no_disk_cache = 1;
    return options;
}

inline std::int32_t small(Bytes& bytes) { return static_cast<std::int32_t>(bytes.below(14)) - 2; }

// Chosen by the input, and kept until all calls are done.
class Arguments {
  public:
    explicit Arguments(std::string_view input)
        : bytes_(input), random_(seed_of(input)), tensors_(random_, bytes_.chance(50)) {}
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    Bytes& bytes() { return bytes_; }
    Random& random() { return random_; }
    Workspace workspace(std::size_t bytes) { return tensors_.workspace(bytes); }

    // The struct as it is, or as a caller of another version has it, or with any size. The last
    // lets nobody read more than there is.
    template <typename Struct> const Struct* given(const Struct& value) {
        auto keep = std::make_shared<Roomy<Struct>>();
        keep->value = value;
        kept_.push_back(keep);
        if (bytes_.chance(90)) return &keep->value;
        // Structs of all versions end where a field of eight bytes does.
        constexpr auto kSize = static_cast<std::uint32_t>(sizeof(Struct));
        keep->value.struct_size = bytes_.pick(std::array<std::uint32_t, 8>{
            0, 3, 8, kSize / 2 / 8 * 8, kSize - 8, kSize + 64, 5000, ~0u});
        if (keep->value.struct_size == kSize + 64) keep->rest[bytes_.below(64)] = small(bytes_) & 1;
        return &keep->value;
    }
    template <typename Struct> Struct* filled(Struct& value) {
        if (bytes_.chance(10))
            value.struct_size = bytes_.pick(std::array<std::uint32_t, 5>{0, 3, 8, 16, ~0u});
        return bytes_.chance(97) ? &value : nullptr;
    }

    const flexc_tensor* input(DType dtype, const std::vector<std::int64_t>& shape) {
        return tensor(tensors_.input(dtype, shape));
    }
    const flexc_tensor* output(const std::vector<std::int64_t>& shape) {
        return tensor(tensors_.output(DType::f32, shape));
    }

    // In memory of its own, that nobody can write to.
    const flexc_tensor* copy(std::span<const std::int32_t> numbers) {
        return tensor(tensors_.copy(numbers));
    }

    const flexc_tensor* read_only(const flexc_tensor& given) {
        auto made = std::make_shared<flexc_tensor>(given);
        made->const_data = std::exchange(made->data, nullptr);
        kept_.push_back(made);
        return made.get();
    }

    // The same memory as a tensor of another type, or with a dim more.
    const flexc_tensor* of_other_form(const flexc_tensor& right) {
        auto made = std::make_shared<flexc_tensor>(right);
        kept_.push_back(made);
        if (bytes_.chance(50))
            made->dtype = FLEXC_I16;
        else
            made->shape[made->rank++] = 1;
        return made.get();
    }

    // The tensor with something that its call has to refuse, whatever is in its memory.
    const flexc_tensor* wrong(const flexc_tensor& right) {
        auto made = std::make_shared<flexc_tensor>(right);
        kept_.push_back(made);
        const auto dim = static_cast<std::size_t>(
            bytes_.below(static_cast<std::size_t>(std::max(1, right.rank))));
        const std::int64_t extent = bytes_.pick(kExtremes);
        switch (bytes_.below(6)) {
        case 0: made->dtype = right.dtype == FLEXC_F64 ? FLEXC_I8 : FLEXC_F64; break;
        case 1: made->dtype = bytes_.chance(50) ? 0 : 77; break;
        case 2: made->rank = right.rank == 1 ? 2 : right.rank - 1; break;
        case 3: made->rank = bytes_.chance(50) ? -1 : 9; break;
        case 4:
            made->data = static_cast<std::byte*>(const_cast<void*>(address_of(*made))) + 1;
            made->const_data = nullptr;
            break;
        default:
            made->shape[dim] = extent == right.shape[dim] ? extent + 1 : extent;
            made->has_strides = bytes_.chance(50) ? 1 : 0;
            for (std::int64_t& stride : made->strides)
                stride = bytes_.pick(kExtremes);
            break;
        }
        return made.get();
    }

  private:
    static const void* address_of(const flexc_tensor& tensor) {
        return tensor.data != nullptr ? tensor.data : tensor.const_data;
    }
    const flexc_tensor* tensor(const TensorView& view) {
        auto made = std::make_shared<flexc_tensor>(sized<flexc_tensor>());
        made->dtype = static_cast<std::int32_t>(view.dtype) + 1;
        made->data = view.data;
        made->rank = view.rank;
        std::copy(view.shape.begin(), view.shape.end(), made->shape);
        kept_.push_back(made);
        return made.get();
    }

    Bytes bytes_;
    Random random_;
    Tensors tensors_;
    std::vector<std::shared_ptr<void>> kept_;
};

} // namespace flexc::fuzz
