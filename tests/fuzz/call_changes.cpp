#include "call_changes.h"

namespace flexc::fuzz {

void change_options(Arguments& arguments, flexc_compile_options& options,
                    flexc_buffer_declaration& buffer, flexc_param_declaration& param,
                    const char* const* dims) {
    Bytes& bytes = arguments.bytes();
    switch (bytes.below(14)) {
    case 0: options.dtype = small(bytes); return;
    case 1: options.head_dim = static_cast<std::int32_t>(bytes.pick(kExtremes)); return;
    case 2: options.head_dim_v = static_cast<std::int32_t>(bytes.pick(kExtremes)); return;
    case 3: options.device = bytes.chance(80) ? FLEXC_DEVICE_CPU : small(bytes); return;
    case 4: options.backward_kernel = small(bytes); return;
    case 5: options.forward_kernel = small(bytes); return;
    case 6: options.gradient_type = small(bytes); return;
    case 7: options.mask_mod = bytes.chance(50) ? "q_idx > kv_idx" : "t[h"; return;
    case 8: options.schedule = bytes.chance(50) ? "keys=1" : ""; return;
    case 9:
        buffer.name = bytes.pick(std::array<const char*, 4>{"t", "score", "a b", nullptr});
        buffer.dtype = small(bytes);
        buffer.dims = bytes.chance(80) ? dims : nullptr;
        buffer.dim_count = bytes.below(3);
        buffer.grad = small(bytes);
        options.buffers = bytes.chance(90) ? &buffer : nullptr;
        options.buffer_count = bytes.below(2);
        return;
    case 10:
        param.name = bytes.pick(std::array<const char*, 4>{"p", "kv_idx", "", nullptr});
        param.dtype = small(bytes);
        param.value = static_cast<double>(bytes.pick(kExtremes));
        options.params = bytes.chance(90) ? &param : nullptr;
        options.param_count = bytes.below(2);
        return;
    case 11: options.count_visible = 1; return;
    case 12: options.pack = bytes.chance(50) ? "/nonexistent" : ""; return;
    default: options.mask_tiles = small(bytes); return;
    }
}

bool change_plan(Arguments& arguments, flexc_sizes& sizes, flexc_plan_options& options,
                 flexc_param_value& cap, Named& buffers) {
    Bytes& bytes = arguments.bytes();
    switch (bytes.below(6)) {
    case 0: {
        std::int64_t* const each[] = {&sizes.batch, &sizes.heads, &sizes.kv_heads, &sizes.q_len,
                                      &sizes.kv_len};
        for (std::size_t count = 1 + bytes.below(3); count > 0; --count)
            *each[bytes.below(5)] = bytes.pick(kExtremes);
        for (const std::int64_t* size : each)
            if (*size < 1) return true;
        return false;
    }
    case 1: {
        std::int64_t* const each[] = {&options.q_offset, &options.kv_offset, &options.global_q_len,
                                      &options.global_kv_len};
        for (std::size_t count = 1 + bytes.below(3); count > 0; --count)
            *each[bytes.below(4)] = bytes.pick(kExtremes);
        return false;
    }
    case 2:
        options.has_scale = 1;
        options.scale = real(arguments.random(), true);
        return false;
    case 3:
        cap.name = bytes.pick(std::array<const char*, 3>{"cup", "", nullptr});
        options.params = bytes.chance(80) ? &cap : nullptr;
        options.param_count = 1;
        return true;
    case 4:
        if (buffers.empty()) {
            buffers.push_back(named("none", arguments.input(DType::f32, {1})));
        } else {
            auto& buffer = buffers[bytes.below(buffers.size())];
            buffer.tensor = bytes.chance(90) ? arguments.wrong(*buffer.tensor) : nullptr;
        }
        return true;
    default:
        if (buffers.empty()) return false;
        buffers[0].name = bytes.chance(50) ? nullptr : "b";
        return true;
    }
}

void break_launch(Arguments& arguments, const flexc_kernel*& kernel, const flexc_plan*& plan,
                  flexc_backward_tensors& call, Named& buffers, flexc_workspace& workspace) {
    Bytes& bytes = arguments.bytes();
    const std::array<const flexc_tensor**, 4> tensors = {&call.q, &call.k, &call.v, &call.o};
    const flexc_tensor*& broken = *bytes.pick(tensors);
    switch (bytes.below(5)) {
    case 0:
        if (!buffers.empty()) {
            buffers.pop_back();
            return;
        }
        break;
    case 1:
        if (workspace.bytes > 0) {
            workspace.bytes = bytes.chance(50) ? workspace.bytes - 1 : 0;
            return;
        }
        break;
    case 2:
        if (bytes.chance(50))
            kernel = nullptr;
        else
            plan = nullptr;
        return;
    case 3: broken = nullptr; return;
    default: break;
    }
    broken = arguments.wrong(*broken);
}

} // namespace flexc::fuzz
