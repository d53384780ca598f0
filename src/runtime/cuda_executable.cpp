#include "runtime/cuda_executable.h"

#include <optional>
#include <utility>

#include "cuda/driver.h"
#include "runtime/block_masks.h"
#include "runtime/cuda_workspace.h"
#include "runtime/length_reader.h"
#include "runtime/loaded_variants.h"
#include "runtime/pass_run.h"
#include "runtime/plan_memory.h"
#include "runtime/staged_copies.h"
#include "runtime/tile_queues.h"

namespace flexc::runtime {

namespace {

class CudaExecutable final : public Executable {
  public:
    explicit CudaExecutable(const CudaOptions& options)
        : options_(options), copies_(options.device),
          plan_memory_(std::make_shared<PlanMemory>(options.device)) {}
    CudaExecutable(const CudaExecutable&) = delete;
    CudaExecutable& operator=(const CudaExecutable&) = delete;

    ~CudaExecutable() override {
        // At process end the driver may be gone; there is nothing to do about a failure here.
        auto scope = cuda::ContextScope::enter(options_.device);
        if (scope && flag_ != nullptr) (void)cuda::release(flag_);
        queues_.reset();
    }

    Result<void> load(CudaPlan plan) {
        auto scope = cuda::ContextScope::enter(options_.device);
        if (!scope) return scope.error();
        auto device = cuda::device_info(options_.device);
        if (!device) return device.error();
        multiprocessors_ = device->multiprocessors;
        starts_early_ = device->arch >= 90;
        if (auto done = load_variants(std::move(plan.forward), forward_); !done) return done;
        if (plan.block_mask)
            if (auto done = load_block_masks(*plan.block_mask, plan.block_mask_facts); !done)
                return done;
        if (plan.lengths)
            if (auto done = load_lengths(*plan.lengths); !done) return done;
        if (plan.backward)
            if (auto done = load_variants(std::move(*plan.backward), backward_); !done) return done;
        if (forward_) add_block_masks(forward_->first().plan, Pass::forward);
        if (backward_) add_block_masks(backward_->first().plan, Pass::backward);
        if (!options_.report_out_of_range) return {};
        auto flag = cuda::allocate(sizeof(std::int32_t));
        if (!flag) return flag.error();
        flag_ = *flag;
        return cuda::fill_async(flag_, 0, sizeof(std::int32_t), nullptr);
    }

    Result<PassVariants> choose(const Call& forward, const Call* backward,
                                std::int64_t visible_keys) const override {
        auto scope = cuda::ContextScope::enter(options_.device);
        if (!scope) return scope.error();
        PassVariants chosen;
        auto one = forward_->choose(forward, tensor_form(), visible_keys);
        if (!one) return one.error();
        chosen.forward = *one;
        if (backward == nullptr || !backward_) return chosen;
        auto other = backward_->choose(*backward, tensor_form(), visible_keys);
        if (!other) return other.error();
        chosen.backward = *other;
        return chosen;
    }

    Result<void> forward(const Call& call) const override {
        return run(forward_->chosen(call.variants.forward), call);
    }

    Result<void> backward(const Call& call) const override {
        if (!backward_) return Error{ErrorCode::internal, "a kernel of this pass was not compiled"};
        return run(backward_->chosen(call.variants.backward), call);
    }

    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        const auto& variants = backward ? backward_ : forward_;
        if (!variants) return 0;
        const std::size_t chosen = backward ? call.variants.backward : call.variants.forward;
        return PlacedWorkspace(variants->chosen(chosen).plan.workspace, call).bytes();
    }

    bool has_block_masks() const override { return block_masks_.has_value(); }
    std::size_t block_mask_bytes(const Call& call) const override {
        return block_masks_ ? block_masks_->bytes(call.attention) : 0;
    }
    Result<std::shared_ptr<void>> allocate_for_plan(std::size_t bytes) const override {
        return plan_memory_->allocate(bytes);
    }
    bool reads_sequences_of_plan() const override { return true; }
    Result<void> copy_for_plan(void* to, std::span<const std::span<const std::byte>> pieces,
                               Stream stream) const override {
        auto scope = cuda::ContextScope::enter(options_.device, stream.handle);
        if (!scope) return scope.error();
        if (cuda::stream_state(stream.handle).is_capturing)
            return Error{ErrorCode::invalid_option,
                         "lengths in host memory cannot become part of a graph: call update() "
                         "before the capture, or give it lengths in the device's memory"};
        return copies_.copy(to, pieces, stream.handle);
    }
    Result<void> read_lengths(const LengthArrays& arrays, const SequenceRecords& to,
                              Stream stream) const override {
        auto scope = cuda::ContextScope::enter(options_.device, stream.handle);
        if (!scope) return scope.error();
        return length_reader_->read(arrays, to, stream.handle);
    }
    Result<void> build_block_mask(const Call& call, std::optional<Pass> pass) const override {
        auto scope = cuda::ContextScope::enter(options_.device, call.stream.handle);
        if (!scope) return scope.error();
        return block_masks_->build(call.attention, words_of(call), call.block_mask, pass,
                                   call.stream.handle);
    }

    void* out_of_range_flag() const override { return flag_; }

    Result<bool> take_out_of_range() const override {
        auto scope = cuda::ContextScope::enter(options_.device);
        if (!scope) return scope.error();
        if (auto done = cuda::synchronize_context(); !done) return done.error();
        std::int32_t value = 0;
        if (auto done = cuda::copy_to_host(&value, flag_, sizeof(value)); !done)
            return done.error();
        if (auto done = cuda::fill_async(flag_, 0, sizeof(value), nullptr); !done)
            return done.error();
        return value != 0;
    }

    std::span<const KernelInfo> kernels() const override { return infos_; }

  private:
    // NVRTC's log is empty when it answers from a cache of its own; the driver always knows.
    Result<void> add_info(const cuda::Module& module, const plan::KernelConfig& config,
                          KernelInfo info) {
        auto function = module.function(std::string(config.entry), config.block.shared_bytes);
        if (!function) return function.error();
        if (const auto registers = function->registers()) info.registers = *registers;
        infos_.push_back(std::move(info));
        return {};
    }

    Result<void> load_variants(CudaVariants variants, std::optional<LoadedVariants>& to) {
        auto first = load_pass(variants.first, options_.device);
        if (!first) return first.error();
        for (std::size_t i = 0; i < variants.first.kernels.size(); ++i)
            if (auto done = add_info(first->modules[i], first->plan.kernels[i],
                                     std::move(variants.first.kernels[i].info));
                !done)
                return done;
        for (const plan::Step& step : first->plan.steps)
            if (const auto* launch = std::get_if<plan::Launch>(&step);
                launch != nullptr && launch->has_queue && !queues_) {
                queues_.emplace();
                if (auto done = queues_->allocate(); !done) return done;
            }
        to.emplace(std::move(*first), std::move(variants), options_.device);
        return {};
    }

    Result<void> load_block_masks(CudaKernel& builder, const plan::BlockMaskFacts& facts) {
        auto module = cuda::Module::load(options_.device, builder.cubin);
        if (!module) return module.error();
        if (auto done = add_info(*module, builder.config, std::move(builder.info)); !done)
            return done;
        auto masks = BlockMasks::load(std::move(*module), facts, starts_early_);
        if (!masks) return masks.error();
        block_masks_ = std::move(*masks);
        return {};
    }

    void add_block_masks(const plan::PassPlan& plan, Pass pass) {
        if (!block_masks_) return;
        for (const plan::Step& step : plan.steps)
            if (const auto* launch = std::get_if<plan::Launch>(&step);
                launch != nullptr && launch->block_mask)
                block_masks_->add(*launch->block_mask, pass);
    }

    Result<void> load_lengths(CudaKernel& kernel) {
        auto module = cuda::Module::load(options_.device, kernel.cubin);
        if (!module) return module.error();
        if (auto done = add_info(*module, kernel.config, std::move(kernel.info)); !done)
            return done;
        auto reader = LengthReader::load(std::move(*module), kernel.config, starts_early_);
        if (!reader) return reader.error();
        length_reader_ = std::move(*reader);
        return {};
    }

    cuda::TensorForm tensor_form() const {
        return {options_.head_dim, options_.head_dim_v, options_.is_ragged,
                options_.keys_are_in_order};
    }
    Result<void> run(const LoadedPass& pass, const Call& call) const {
        auto scope = cuda::ContextScope::enter(options_.device, call.stream.handle);
        if (!scope) return scope.error();
        return run_pass(pass, call, run_context());
    }

    RunContext run_context() const {
        return {.dtype = options_.dtype,
                .form = tensor_form(),
                .multiprocessors = multiprocessors_,
                .queues = queues_ ? &*queues_ : nullptr,
                .block_masks = block_masks_ ? &*block_masks_ : nullptr};
    }

    const CudaOptions options_;
    int multiprocessors_ = 1;
    bool starts_early_ = false; // kernels may start before the one ahead has ended
    std::optional<TileQueues> queues_;
    std::optional<BlockMasks> block_masks_;     // if some kernel reads one
    std::optional<LengthReader> length_reader_; // if tensors are not dense
    mutable StagedCopies copies_;               // of memory that plans own
    std::shared_ptr<PlanMemory> plan_memory_;
    std::optional<LoadedVariants> forward_, backward_;
    std::vector<KernelInfo> infos_;
    void* flag_ = nullptr;
};

} // namespace

Result<std::shared_ptr<const Executable>> load_cuda(CudaPlan plan, const CudaOptions& options) {
    auto executable = std::make_shared<CudaExecutable>(options);
    if (auto loaded = executable->load(std::move(plan)); !loaded) return loaded.error();
    return std::shared_ptr<const Executable>(std::move(executable));
}

} // namespace flexc::runtime
