#include "runtime/buffers.h"

#include <cstdlib>

#include "support/text.h"

namespace flexc::runtime {

namespace {

const TensorView* find(std::span<const NamedTensor> tensors, std::string_view name) {
    for (const NamedTensor& entry : tensors)
        if (entry.name == name) return &entry.tensor;
    return nullptr;
}

Result<void> check_names(const ir::Program& program, std::span<const NamedTensor> tensors,
                         bool gradients) {
    for (const NamedTensor& entry : tensors) {
        const ir::Buffer* match = nullptr;
        for (const ir::Buffer& buffer : program.buffers)
            if (buffer.name == entry.name && (buffer.grad || !gradients)) match = &buffer;
        if (match == nullptr)
            return invalid(formatted("'{}' is not a {}buffer of this program", entry.name,
                                     gradients ? "grad " : ""));
    }
    return {};
}

Result<void> bind_dims(const ir::Program& program, const ir::Buffer& buffer,
                       const TensorView& tensor, std::span<std::int64_t> sizes) {
    if (static_cast<std::size_t>(tensor.rank) != buffer.dims.size()) return {};
    for (std::size_t i = 0; i < buffer.dims.size(); ++i) {
        const ir::Dim& dim = buffer.dims[i];
        if (dim.is_constant() || sizes[dim.size] != kUnbound) continue;
        if (tensor.shape[i] < 1)
            return invalid(formatted("'{}': size {} is {}; it must be at least 1", buffer.name,
                                     program.sizes[dim.size], tensor.shape[i]));
        sizes[dim.size] = tensor.shape[i];
    }
    return {};
}

// Checks a buffer, or its gradient, against its declaration.
Result<void> check_buffer(const ir::Program& program, const ir::Buffer& buffer,
                          const TensorView& tensor, DType expected_dtype,
                          std::span<const std::int64_t> sizes, std::string_view label) {
    if (auto checked = check_view(tensor, label); !checked) return checked;
    if (tensor.dtype != expected_dtype)
        return invalid(formatted("{}: expected type {}, got {}", label, name(expected_dtype),
                                 name(tensor.dtype)));
    bool matches = static_cast<std::size_t>(tensor.rank) == buffer.dims.size();
    for (std::size_t i = 0; matches && i < buffer.dims.size(); ++i) {
        const ir::Dim& dim = buffer.dims[i];
        matches = tensor.shape[i] == (dim.is_constant() ? dim.constant : sizes[dim.size]);
    }
    if (!matches)
        return invalid(formatted("{}: expected shape {}, got {}", label,
                                 dims_text(program, buffer, sizes), shape_text(shape_of(tensor))));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0)
        return invalid(formatted("{}: the pointer is not aligned to its {} elements", label,
                                 name(tensor.dtype)));
    return {};
}

Result<void> find_one(const ir::Program& program, const ir::Buffer& buffer, DType dtype,
                      std::span<const std::int64_t> sizes, std::span<const NamedTensor> tensors,
                      std::string_view label, TensorView& view) {
    const TensorView* tensor = find(tensors, buffer.name);
    if (tensor == nullptr || !*tensor)
        return invalid(formatted("{}: missing; expected {} {}", label, name(dtype),
                                 dims_text(program, buffer, sizes)));
    view = *tensor;
    return check_buffer(program, buffer, view, dtype, sizes, label);
}

} // namespace

std::string dims_text(const ir::Program& program, const ir::Buffer& buffer,
                      std::span<const std::int64_t> values) {
    std::string text = "[";
    for (std::size_t i = 0; i < buffer.dims.size(); ++i) {
        const ir::Dim& dim = buffer.dims[i];
        if (i > 0) text += ", ";
        if (dim.is_constant())
            text += std::to_string(dim.constant);
        else if (values[dim.size] == kUnbound)
            text += program.sizes[dim.size];
        else
            text += formatted("{} = {}", program.sizes[dim.size], values[dim.size]);
    }
    return text + "]";
}

std::string shape_text(std::span<const std::int64_t> shape) {
    return formatted("[{}]", joined(shape, ", "));
}

std::span<const std::int64_t> shape_of(const TensorView& tensor) {
    return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

Result<void> check_view(const TensorView& tensor, std::string_view label) {
    if (tensor.rank < 0 || tensor.rank > kMaxDims)
        return invalid(formatted("{}: a rank of {} is not 0 to {}", label, tensor.rank, kMaxDims));
    std::int64_t reach = 0;
    for (std::size_t i = 0; i < shape_of(tensor).size(); ++i) {
        if (tensor.shape[i] <= 1) continue; // one element, or a shape that is refused elsewhere
        const std::int64_t stride =
            tensor.strides[i] == INT64_MIN ? INT64_MAX : std::abs(tensor.strides[i]);
        reach = support::plus(reach, support::times(stride, tensor.shape[i] - 1));
    }
    if (tensor.elements() > kMaxTensorElements || reach > kMaxTensorElements)
        return Error{
            ErrorCode::limit,
            formatted("{}: the shape {} with strides {} reaches further than 2^48 "
                      "elements",
                      label, shape_text(shape_of(tensor)),
                      shape_text(std::span(tensor.strides).first(shape_of(tensor).size())))};
    return {};
}

bool is_contiguous(const TensorView& tensor) {
    std::int64_t stride = 1;
    for (int i = tensor.rank; i-- > 0;) {
        const auto at = static_cast<std::size_t>(i);
        if (tensor.shape[at] != 1 && tensor.strides[at] != stride) return false;
        stride = support::times(stride, tensor.shape[at]);
    }
    return true;
}

Result<void> check_writable(const TensorView& tensor, std::string_view label) {
    if (!tensor.is_read_only) return {};
    return invalid(formatted("{}: the call writes to it, and it was given as read-only", label));
}

Result<void> bind_sizes(const ir::Program& program, std::span<const NamedTensor> tensors,
                        std::span<std::int64_t> sizes) {
    if (auto known = check_names(program, tensors, false); !known) return known;
    for (const ir::Buffer& buffer : program.buffers)
        if (const TensorView* tensor = find(tensors, buffer.name)) {
            if (auto bound = bind_dims(program, buffer, *tensor, sizes); !bound) return bound;
            if (auto checked = check_buffer(program, buffer, *tensor, buffer.dtype, sizes,
                                            formatted("'{}'", buffer.name));
                !checked)
                return checked;
        }
    return {};
}

DType gradient_dtype(const ir::Buffer& buffer, GradientType type) {
    return type == GradientType::buffer ? buffer.dtype : DType::f32;
}

Result<void> find_buffers(const ir::Program& program, std::span<const std::int64_t> sizes,
                          std::span<const NamedTensor> tensors, std::span<TensorView> views) {
    if (auto known = check_names(program, tensors, false); !known) return known;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& buffer = program.buffers[i];
        const std::string label = formatted("'{}'", buffer.name);
        if (auto found = find_one(program, buffer, buffer.dtype, sizes, tensors, label, views[i]);
            !found)
            return found;
    }
    return {};
}

Result<void> find_gradients(const ir::Program& program, std::span<const std::int64_t> sizes,
                            std::span<const NamedTensor> tensors, GradientType type,
                            std::span<TensorView> views) {
    if (auto known = check_names(program, tensors, true); !known) return known;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& buffer = program.buffers[i];
        if (!buffer.grad) continue;
        const std::string label = formatted("gradient of '{}'", buffer.name);
        if (auto found = find_one(program, buffer, gradient_dtype(buffer, type), sizes, tensors,
                                  label, views[i]);
            !found)
            return found;
        if (!is_contiguous(views[i])) return invalid(formatted("{}: must be contiguous", label));
        if (auto checked = check_writable(views[i], label); !checked) return checked;
    }
    return {};
}

} // namespace flexc::runtime
