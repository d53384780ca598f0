#include "runtime/cpu_executable.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "cpu/emit_llvm.h"
#include "runtime/buffers.h"
#include "runtime/cpu_tile_map.h"
#include "support/floats.h"

namespace flexc::runtime {

namespace {

template <typename Format> void round_as(const TensorView& from, const TensorView& to) {
    const auto* sums = static_cast<const float*>(from.data);
    std::transform(sums, sums + from.elements(), static_cast<typename Format::Bits*>(to.data),
                   Format::narrow);
}

class CpuExecutable final : public Executable {
  public:
    CpuExecutable(std::shared_ptr<const cpu::Executable> compiled, KernelInfo info,
                  const passes::Mod& mod)
        : compiled_(std::move(compiled)), info_(std::move(info)) {
        if (cpu::has_map(mod)) map_.emplace(mod);
    }

    Result<void> forward(const Call& call) const override {
        return compiled_->forward({.arguments = with_map(call),
                                   .words = call.words,
                                   .gradients = {},
                                   .workspace = call.workspace.data});
    }

    Result<void> backward(const Call& call) const override {
        const Gradients gradients = select(call);
        // Also those that nothing reads: their gradient is zero.
        if (!call.accumulate_gradients)
            for (const TensorView& view : call.gradients)
                if (view) std::memset(view.data, 0, bytes_of(view));
        return compiled_->backward({.arguments = with_map(call),
                                    .words = call.words,
                                    .gradients = gradients.used(),
                                    .workspace = call.workspace.data});
    }

    Result<void> round(const TensorView& from, const TensorView& to, Stream) const override {
        switch (to.dtype) {
        case DType::f16: round_as<support::F16>(from, to); break;
        case DType::bf16: round_as<support::Bf16>(from, to); break;
        default: round_as<support::F64>(from, to);
        }
        return {};
    }

    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        const Gradients gradients = select(call);
        return compiled_->workspace_bytes({.arguments = call.attention,
                                           .words = call.words,
                                           .gradients = gradients.used(),
                                           .workspace = nullptr},
                                          backward);
    }

    std::size_t map_bytes(const Call& call) const override {
        return map_ ? map_->bytes(call.attention) : 0;
    }
    Result<void> build_map(const Call& call) const override {
        return map_->build(call.attention, call.words, call.map);
    }
    Result<std::shared_ptr<void>> allocate_map(std::size_t bytes) const override {
        return std::shared_ptr<void>(std::make_shared<std::byte[]>(bytes));
    }

    void* out_of_range_flag() const override { return &out_of_range_; }
    Result<bool> take_out_of_range() const override {
        return std::atomic_ref(out_of_range_).exchange(0) != 0;
    }
    std::span<const KernelInfo> kernels() const override { return {&info_, 1}; }

  private:
    AttentionArguments with_map(const Call& call) const {
        AttentionArguments arguments = call.attention;
        if (map_) arguments.map = map_->in(call.attention, call.map);
        return arguments;
    }

    struct Gradients {
        std::array<TensorView, 32> views;
        std::size_t count = 0;
        std::span<const TensorView> used() const { return std::span(views).first(count); }
    };
    Gradients select(const Call& call) const {
        Gradients result;
        for (const std::uint32_t buffer : compiled_->gradient_buffers())
            result.views[result.count++] = call.gradients[buffer];
        return result;
    }

    std::shared_ptr<const cpu::Executable> compiled_;
    KernelInfo info_;
    std::optional<CpuTileMap> map_;
    mutable std::int32_t out_of_range_ = 0;
};

} // namespace

std::shared_ptr<const Executable> wrap_cpu(std::shared_ptr<const cpu::Executable> compiled,
                                           KernelInfo info, const passes::Mod& mod) {
    return std::make_shared<CpuExecutable>(std::move(compiled), std::move(info), mod);
}

} // namespace flexc::runtime
