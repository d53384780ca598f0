#include "runtime/cpu_executable.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "cpu/emit_llvm.h"
#include "runtime/buffers.h"
#include "runtime/cpu_block_mask.h"
#include "support/floats.h"
#include "support/guarded.h"

namespace flexc::runtime {

namespace {

template <typename Format> void round_as(const TensorView& from, const TensorView& to) {
    const auto* sums = static_cast<const float*>(from.data);
    std::transform(sums, sums + from.elements(), static_cast<typename Format::Bits*>(to.data),
                   Format::narrow);
}

void round(const TensorView& from, const TensorView& to) {
    switch (to.dtype) {
    case DType::f16: round_as<support::F16>(from, to); break;
    case DType::bf16: round_as<support::Bf16>(from, to); break;
    default: round_as<support::F64>(from, to);
    }
}

class CpuExecutable final : public Executable {
  public:
    CpuExecutable(std::shared_ptr<const cpu::Executable> compiled, KernelInfo info,
                  const passes::Mod& mod)
        : compiled_(std::move(compiled)), info_(std::move(info)) {
        if (mod.program.is_dense() && cpu::has_block_mask(mod)) block_mask_.emplace(mod);
    }

    Result<void> forward(const Call& call) const override {
        return compiled_->forward({.sequences = call.sequences,
                                   .arguments = with_block_mask(call),
                                   .words = call.words,
                                   .gradients = {},
                                   .threads = call.cpu_threads,
                                   .workspace = call.workspace.data});
    }

    Result<void> backward(const Call& call) const override {
        const Gradients gradients = select(call);
        // Including gradients of buffers that the program never reads, which are zero.
        if (!call.accumulate_gradients)
            for (const TensorView& view : call.gradients)
                if (view) std::memset(view.data, 0, bytes_of(view));
        if (auto done = compiled_->backward({.sequences = call.sequences,
                                             .arguments = with_block_mask(call),
                                             .words = call.words,
                                             .gradients = gradients.used(),
                                             .threads = call.cpu_threads,
                                             .workspace = call.workspace.data});
            !done)
            return done;
        for (std::size_t i = 0; i < call.rounded_gradients.size(); ++i)
            if (const TensorView& rounded = call.rounded_gradients[i])
                round(call.gradients[i], rounded);
        return {};
    }

    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        const Gradients gradients = select(call);
        return compiled_->workspace_bytes({.sequences = call.sequences,
                                           .arguments = call.attention,
                                           .words = call.words,
                                           .gradients = gradients.used(),
                                           .threads = call.cpu_threads,
                                           .workspace = nullptr},
                                          backward);
    }

    bool has_block_masks() const override { return block_mask_.has_value(); }
    std::size_t block_mask_bytes(const Call& call) const override {
        return block_mask_ ? block_mask_->bytes(call.attention) : 0;
    }
    Result<void> build_block_mask(const Call& call, std::optional<Pass>) const override {
        return block_mask_->build(call.attention, call.words, call.block_mask);
    }
    Result<std::shared_ptr<void>> allocate_for_plan(std::size_t bytes) const override {
        // The size follows from the caller's lengths, so the allocation may fail.
        std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
        if (memory == nullptr) return out_of_memory();
        return std::shared_ptr<void>(std::shared_ptr<std::byte[]>(std::move(memory)));
    }

    void* out_of_range_flag() const override { return &out_of_range_; }
    Result<bool> take_out_of_range() const override {
        return std::atomic_ref(out_of_range_).exchange(0) != 0;
    }
    std::span<const KernelInfo> kernels() const override { return {&info_, 1}; }

  private:
    AttentionArguments with_block_mask(const Call& call) const {
        AttentionArguments arguments = call.attention;
        if (block_mask_) arguments.block_mask = block_mask_->in(call.attention, call.block_mask);
        return arguments;
    }

    struct Gradients {
        std::array<TensorView, ir::kMaxBuffers> views;
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
    std::optional<CpuBlockMask> block_mask_;
    mutable std::int32_t out_of_range_ = 0;
};

} // namespace

std::shared_ptr<const Executable> wrap_cpu(std::shared_ptr<const cpu::Executable> compiled,
                                           KernelInfo info, const passes::Mod& mod) {
    return std::make_shared<CpuExecutable>(std::move(compiled), std::move(info), mod);
}

} // namespace flexc::runtime
