#include "runtime/cuda_executable.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <utility>

#include "cuda/driver.h"
#include "cuda/tensor_maps.h"
#include "runtime/block_masks.h"
#include "runtime/buffers.h"
#include "runtime/cuda_workspace.h"
#include "runtime/dense_bias_rows.h"
#include "runtime/gradient_sums.h"
#include "runtime/length_reader.h"
#include "runtime/plan_memory.h"
#include "runtime/staged_copies.h"
#include "runtime/tile_queues.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

// A loaded pass, with the functions of each step in the order of PassPlan::steps; none for fills.
struct LoadedPass {
    plan::PassPlan plan;
    std::vector<cuda::Module> modules;
    std::vector<std::optional<cuda::Function>> functions;
};

using Maps = std::variant<std::monostate, ForwardTensorMaps, BackwardTensorMaps>;

// The variants of a pass, loaded as far as calls have needed them.
class LoadedVariants {
  public:
    LoadedVariants(LoadedPass first, CudaVariants variants)
        : all_(std::move(variants.all)), compile_(std::move(variants.compile)),
          loaded_(all_.size()), given_up_(all_.size()) {
        loaded_[0].emplace(std::move(first));
    }

    std::span<const CudaVariant> all() const { return all_; }
    const LoadedPass& first() const { return *loaded_[0]; }
    // Returns a variant that find() has returned before.
    const LoadedPass& known(std::size_t variant) const {
        const std::lock_guard lock(mutex_);
        return *loaded_[variant];
    }

    // Returns a variant; the first plan that needs it compiles it, without a lock. If several plans
    // compile it at the same time, the first result is kept.
    template <typename Load>
    Result<const LoadedPass*> find(std::size_t variant, const Load& load) const {
        {
            const std::lock_guard lock(mutex_);
            if (loaded_[variant]) return &*loaded_[variant];
        }
        auto compiled = compile_(variant);
        if (!compiled) return compiled.error();
        auto pass = load(*compiled);
        if (!pass) return pass.error();
        const std::lock_guard lock(mutex_);
        if (!loaded_[variant]) loaded_[variant].emplace(std::move(*pass));
        return &*loaded_[variant];
    }

    // Marks a variant that failed, so that no plan asks for it again.
    void give_up(std::size_t variant) const {
        const std::lock_guard lock(mutex_);
        given_up_[variant] = true;
    }
    bool is_given_up(std::size_t variant) const {
        const std::lock_guard lock(mutex_);
        return given_up_[variant];
    }

  private:
    std::vector<CudaVariant> all_;
    std::function<Result<CudaPass>(std::size_t)> compile_;
    mutable std::mutex mutex_;
    mutable std::vector<std::optional<LoadedPass>> loaded_; // never shrinks or grows
    mutable std::vector<bool> given_up_;
};

bool has_narrow_offsets(const plan::BufferWords& buffer, const Call& call) {
    std::uint64_t last = 0; // offset of the last element, so far
    for (std::size_t dim = 0; dim < buffer.strides.size(); ++dim) {
        const auto extent = static_cast<std::int64_t>(call.words[buffer.extents[dim]]);
        const auto stride = static_cast<std::int64_t>(call.words[buffer.strides[dim]]);
        const std::uint64_t size = stride < 0 ? 0 - static_cast<std::uint64_t>(stride)
                                              : static_cast<std::uint64_t>(stride);
        if (extent <= 1) continue;
        if (size > INT32_MAX || extent > INT32_MAX) return false;
        last += size * static_cast<std::uint64_t>(extent - 1);
        if (last > INT32_MAX) return false;
    }
    return true;
}

// A program without arguments has an empty struct, whose one byte is never read.
const void* words_of(const Call& call) {
    static constexpr std::uint64_t kNoWords = 0;
    return call.words.empty() ? &kNoWords : call.words.data();
}

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
        if (block_masks_)
            for (const auto& [variants, pass] :
                 {std::pair{&forward_, Pass::forward}, std::pair{&backward_, Pass::backward}})
                if (*variants)
                    for (const plan::Step& step : (*variants)->first().plan.steps)
                        if (const auto* launch = std::get_if<plan::Launch>(&step))
                            if (launch->block_mask) block_masks_->add(*launch->block_mask, pass);
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
        auto one = first_that_takes(*forward_, forward, visible_keys);
        if (!one) return one.error();
        chosen.forward = *one;
        if (backward == nullptr || !backward_) return chosen;
        auto other = first_that_takes(*backward_, *backward, visible_keys);
        if (!other) return other.error();
        chosen.backward = *other;
        return chosen;
    }

    Result<void> forward(const Call& call) const override {
        return run(forward_->known(call.variants.forward), call);
    }

    Result<void> backward(const Call& call) const override {
        if (!backward_) return not_compiled();
        return run(backward_->known(call.variants.backward), call);
    }

    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        const auto& variants = backward ? backward_ : forward_;
        if (!variants) return 0;
        const std::size_t chosen = backward ? call.variants.backward : call.variants.forward;
        return PlacedWorkspace(variants->known(chosen).plan.workspace, call).bytes();
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
    // One call of one variant, and what its steps share.
    struct Walk {
        std::optional<Maps> maps; // made for the launches of a kernel that ask for them
        const LoadedPass& pass;
        const Call& call; // with words of its own
        Words& words;
        PlacedWorkspace workspace;
        KernelArgument argument;
        bool stores_first = false;
        std::size_t kernel_of_maps = 0;

        const AttentionArguments& attention() const { return argument.attention; }
    };

    static Result<cuda::Function> function_of(const cuda::Module& module, std::string_view entry,
                                              int shared_bytes) {
        return module.function(std::string(entry), shared_bytes);
    }

    Result<LoadedPass> load_pass(CudaPass& pass) const {
        LoadedPass loaded{std::move(pass.plan), {}, {}};
        for (const CudaKernel& kernel : pass.kernels) {
            auto module = cuda::Module::load(options_.device, kernel.cubin);
            if (!module) return module.error();
            loaded.modules.push_back(std::move(*module));
        }
        for (const plan::Step& step : loaded.plan.steps) {
            std::optional<cuda::Function>& to = loaded.functions.emplace_back();
            const auto load = [&](std::size_t kernel, std::string_view entry,
                                  int shared_bytes) -> Result<void> {
                auto function = function_of(loaded.modules[kernel], entry, shared_bytes);
                if (!function) return function.error();
                to = *function;
                return {};
            };
            const auto load_kernel = [&](std::size_t kernel) {
                return load(kernel, loaded.plan.kernels[kernel].entry, 0);
            };
            Result<void> done;
            if (const auto* launch = std::get_if<plan::Launch>(&step))
                done = load(launch->kernel, launch->entry, launch->shared_bytes);
            else if (const auto* sums = std::get_if<plan::RoundSums>(&step))
                done = load_kernel(sums->kernel);
            else if (const auto* gradients = std::get_if<plan::RoundGradients>(&step))
                done = load_kernel(gradients->kernel);
            if (!done) return done.error();
        }
        return loaded;
    }

    // NVRTC's log is empty when it answers from a cache of its own; the driver always knows.
    Result<void> add_info(const cuda::Module& module, const plan::KernelConfig& config,
                          KernelInfo info) {
        auto function = function_of(module, config.entry, config.block.shared_bytes);
        if (!function) return function.error();
        if (const auto registers = function->registers()) info.registers = *registers;
        infos_.push_back(std::move(info));
        return {};
    }

    Result<void> load_variants(CudaVariants variants, std::optional<LoadedVariants>& to) {
        auto first = load_pass(variants.first);
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
        to.emplace(std::move(*first), std::move(variants));
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
    static plan::Launch::Maps maps_of(const plan::PassPlan& pass) {
        for (const plan::Step& step : pass.steps)
            if (const auto* launch = std::get_if<plan::Launch>(&step);
                launch != nullptr && launch->tensor_maps != plan::Launch::Maps::none)
                return launch->tensor_maps;
        return plan::Launch::Maps::none;
    }

    // Returns why the pass cannot compute a call; empty if it can.
    std::string why_not(const plan::PassPlan& pass, const Call& call) const {
        const AttentionArguments& attention = call.attention;
        if (pass.most_rows != 0 && longest_of(attention) > pass.most_rows)
            return formatted("it has sequences of more than {} rows", pass.most_rows);
        if (pass.has_few_queries && !plan::has_few_rows(dense_sizes_of(attention)))
            return formatted("more than {} queries share keys", kMostFewRows);
        if (pass.heads_have_own_keys && attention.heads != attention.kv_heads)
            return "heads of queries share keys";
        if (!(attention.scale >= pass.least_scale))
            return formatted("a scale of {} is too small", attention.scale);
        if (attention.q_offset % pass.query_offset_step != 0)
            return formatted("q_offset {} is no multiple of {}", attention.q_offset,
                             pass.query_offset_step);
        if (attention.kv_offset % pass.key_offset_step != 0)
            return formatted("kv_offset {} is no multiple of {}", attention.kv_offset,
                             pass.key_offset_step);
        if (!std::ranges::all_of(pass.small_buffers, [&](const plan::BufferWords& buffer) {
                return has_narrow_offsets(buffer, call);
            }))
            return "a buffer, or a gradient, has elements 2^31 or more elements apart";
        if (!have_aligned_rows(pass.tiled_biases, call))
            return "rows of a dense bias, or of its gradient, do not start at 16 aligned bytes";
        std::string_view tensor;
        switch (maps_of(pass)) {
        case plan::Launch::Maps::none: break;
        case plan::Launch::Maps::forward:
        case plan::Launch::Maps::forward_queries:
            tensor = cuda::forward_tensor_without_tma(attention, tensor_form());
            break;
        case plan::Launch::Maps::backward:
            tensor = cuda::backward_tensor_without_tma(attention, tensor_form());
            break;
        }
        if (tensor.empty()) return "";
        return formatted(
            "TMA cannot walk {}, whose base and strides have to be of 16 aligned bytes", tensor);
    }

    static int longest_of(const AttentionArguments& attention) {
        return std::max(attention.q_len, attention.kv_len);
    }

    // Returns the variant that is made for calls of such sizes.
    static std::optional<std::size_t> variant_by_size(std::span<const CudaVariant> variants,
                                                      const AttentionArguments& attention,
                                                      std::int64_t visible_keys) {
        const std::int64_t sequences = std::int64_t{attention.batch} * attention.heads;
        const plan::DenseSizes sizes = dense_sizes_of(attention);
        const auto found = std::ranges::find_if(variants, [&](const CudaVariant& variant) {
            switch (variant.calls) {
            case plan::Calls::short_sequences:
                return sequences >= plan::kManySequences &&
                       longest_of(attention) <= variant.most_rows;
            case plan::Calls::few_queries:
                return plan::has_few_rows(sizes) && plan::are_few_faster(sizes, visible_keys);
            default: return false;
            }
        });
        if (found == variants.end()) return {};
        return static_cast<std::size_t>(found - variants.begin());
    }

    Result<std::size_t> first_that_takes(const LoadedVariants& variants, const Call& call,
                                         std::int64_t visible_keys) const {
        const auto find = [&](std::size_t variant) {
            return variants.find(variant, [&](CudaPass& one) { return load_pass(one); });
        };
        const std::span<const CudaVariant> all = variants.all();
        // This variant is only faster: if it cannot be compiled, another one is used.
        if (const auto variant = variant_by_size(all, call.attention, visible_keys);
            variant && !variants.is_given_up(*variant)) {
            auto pass = find(*variant);
            if (pass && why_not((*pass)->plan, call).empty()) return *variant;
            if (!pass) {
                variants.give_up(*variant);
                support::Log().warn(
                    "the kernels of {} cannot be compiled, slower ones take their calls: {}",
                    all[*variant].calls == plan::Calls::few_queries
                        ? "few queries"
                        : formatted("sequences of at most {} rows", all[*variant].most_rows),
                    pass.error().message);
            }
        }
        for (std::size_t variant = 0; variant < all.size(); ++variant) {
            if (plan::is_by_size(all[variant].calls)) continue;
            auto pass = find(variant);
            if (!pass) return pass.error();
            if (why_not((*pass)->plan, call).empty()) return variant;
        }
        return not_compiled();
    }

    // Returns the maps of the call's tensors that TMA needs in a launch of this pass.
    std::optional<Maps> maps_for(const plan::PassPlan& pass, const plan::Launch& launch,
                                 const Call& call) const {
        const plan::KernelConfig& main = pass.kernels[launch.kernel];
        switch (launch.tensor_maps) {
        case plan::Launch::Maps::none: break;
        case plan::Launch::Maps::forward:
        case plan::Launch::Maps::forward_queries: {
            auto maps = cuda::forward_maps(main, launch.tensor_maps == plan::Launch::Maps::forward,
                                           call.attention, options_.dtype, tensor_form());
            if (!maps) return {};
            for (const plan::CopiedBias& biases : pass.copied_biases)
                if (const auto rows = rows_of(biases, call))
                    cuda::add_bias_tensor_map(main, *rows, *maps);
            return *maps;
        }
        case plan::Launch::Maps::backward: {
            auto maps = cuda::backward_maps(main, call.attention, options_.dtype, tensor_form());
            if (!maps) return {};
            return *maps;
        }
        }
        return Maps{};
    }

    Result<void> run(const LoadedPass& pass, const Call& given) const {
        auto scope = cuda::ContextScope::enter(options_.device, given.stream.handle);
        if (!scope) return scope.error();
        Words words(given.words);
        Call call = given;
        call.words = words.all();
        // A graph stays right for other lengths than those of today.
        if (call.few_work != nullptr && cuda::stream_state(call.stream.handle).is_capturing)
            call.few_work = nullptr;
        if (const std::string why = why_not(pass.plan, call); !why.empty())
            return Error{ErrorCode::invalid_option,
                         formatted("this call is not what its plan was made for: {}; give plan() "
                                   "such tensors (PlanOptions::forward, backward) and the buffers",
                                   why)};
        Walk walk{{},
                  pass,
                  call,
                  words,
                  PlacedWorkspace(pass.plan.workspace, call),
                  {call.attention},
                  are_stored_first(pass.plan.stored_gradients, call)};
        return walk_steps(walk);
    }

    Result<void> walk_steps(Walk& walk) const {
        const plan::PassPlan& plan = walk.pass.plan;
        walk.workspace.name_in(walk.argument, walk.call.workspace.data, walk.stores_first);
        const plan::CallLengths lengths = lengths_of(walk.attention());
        for (const plan::LengthArgument& one : plan.length_arguments)
            walk.argument.set(one.argument, static_cast<int>(one.value.of(lengths)));
        if (const PlacedRegion* sums = walk.workspace.find(plan::regions::exact_sums))
            name_exact_sums(plan.exact_gradients, walk.call, at(walk, *sums), walk.words);
        for (std::size_t i = 0; i < plan.steps.size(); ++i) {
            const auto visit = [&](const auto& step) {
                return take(walk, step, walk.pass.functions[i]);
            };
            if (auto done = std::visit(visit, plan.steps[i]); !done) return done;
        }
        return {};
    }

    using Function = std::optional<cuda::Function>;

    static void* at(const Walk& walk, const PlacedRegion& region) {
        return static_cast<std::byte*>(walk.call.workspace.data) + region.offset;
    }

    static Result<void> take(Walk& walk, const plan::Fill& fill, const Function&) {
        const PlacedRegion* region = walk.workspace.find(fill.region);
        if (region == nullptr) return {};
        if (region->region->of_stored_gradients && !walk.stores_first) return {};
        return cuda::fill_async(at(walk, *region), 0, region->bytes, walk.call.stream.handle);
    }

    static Result<void> take(Walk& walk, const plan::FillGradients&, const Function&) {
        if (walk.call.accumulate_gradients) return {};
        for (std::uint32_t i = 0; i < walk.call.gradients.size(); ++i) {
            const TensorView& view = walk.call.gradients[i];
            const plan::StoredGradients& stored = walk.pass.plan.stored_gradients;
            if (!view || (walk.stores_first && stored.holds(i)) ||
                are_lines_stored(stored, walk.call, i))
                continue;
            if (auto done = cuda::fill_async(view.data, 0, bytes_of(view), walk.call.stream.handle);
                !done)
                return done;
        }
        return {};
    }

    // Runs a launch of a pass. Heads that add to the same gradients in order have launches of their
    // own, one after the other.
    Result<void> take(Walk& walk, const plan::Launch& launch, const Function& function) const {
        const int heads = walk.attention().batch * walk.attention().kv_heads;
        const int at_once = launch.by_heads
                                ? heads_of_launch(walk.pass.plan.heads_at_once, walk.attention())
                                : heads;
        if (at_once == heads) return start(walk, launch, *function, 1);
        for (int first = 0; first < heads; first += at_once) {
            walk.words.set(walk.pass.plan.first_head_word, static_cast<std::uint64_t>(first));
            if (auto done = start(walk, launch, *function, heads / at_once); !done) return done;
        }
        return {};
    }

    static Result<void> take(Walk& walk, const plan::RoundSums& step, const Function& function) {
        const plan::PassPlan& plan = walk.pass.plan;
        const PlacedRegion* sums = walk.workspace.find(plan::regions::exact_sums);
        return round_exact_sums(plan.exact_gradients, walk.call, at(walk, *sums),
                                plan.kernels[step.kernel], *function);
    }

    static Result<void> take(Walk& walk, const plan::RoundGradients& step,
                             const Function& function) {
        for (std::size_t i = 0; i < walk.call.rounded_gradients.size(); ++i)
            if (const TensorView& rounded = walk.call.rounded_gradients[i])
                if (auto done = round_sums(walk.call.gradients[i], rounded,
                                           walk.pass.plan.kernels[step.kernel], *function,
                                           walk.call.stream);
                    !done)
                    return done;
        return {};
    }

    // Starts a launch; launches: how many share the work evenly.
    Result<void> start(Walk& walk, const plan::Launch& launch, const cuda::Function& function,
                       int launches) const {
        const AttentionArguments& attention = walk.attention();
        if (attention.batch == 0) return {}; // there are no requests
        const plan::FewWork* few_work = walk.call.few_work;
        if (launch.of_many_rows &&
            (attention.q_len <= kMostFewRows / (attention.heads / attention.kv_heads) ||
             (few_work != nullptr && !few_work->has_others)))
            return {};
        plan::CallLengths lengths = lengths_of(attention);
        std::int64_t blocks = launch.blocks.of(lengths) / launches;
        if (few_work != nullptr && !launch.known_blocks.terms.empty()) {
            lengths.few = *few_work;
            blocks = std::min(blocks, launch.known_blocks.of(lengths));
        }
        if (blocks == 0) return {}; // no request has queries for it, or needs it
        if (blocks > INT32_MAX)
            return Error{ErrorCode::limit,
                         formatted("{} needs {} blocks; a launch can have {}: split the batch",
                                   launch.entry, blocks, INT32_MAX)};
        int* queue = nullptr;
        const std::int64_t most = std::int64_t{multiprocessors_} * launch.blocks_at_once;
        if (launch.is_persistent && blocks > most) {
            blocks = most;
            if (launch.has_queue) queue = queues_->of(walk.call.stream.handle);
        }
        KernelArgument argument = walk.argument;
        if (launch.block_mask)
            argument.attention.block_mask =
                block_masks_->of(*launch.block_mask, argument.attention, walk.call.block_mask);
        if (launch.tensor_maps != plan::Launch::Maps::none &&
            (!walk.maps || walk.kernel_of_maps != launch.kernel)) {
            walk.maps = maps_for(walk.pass.plan, launch, walk.call);
            walk.kernel_of_maps = launch.kernel;
            if (!walk.maps) return Error{ErrorCode::device, "the driver made no tensor map"};
        }
        // The driver copies all before launch() returns.
        std::array<void*, 4> arguments = {&argument, const_cast<void*>(words_of(walk.call))};
        std::size_t count = 2;
        if (launch.tensor_maps == plan::Launch::Maps::backward)
            arguments[count++] = std::get_if<BackwardTensorMaps>(&*walk.maps);
        else if (launch.tensor_maps != plan::Launch::Maps::none)
            arguments[count++] = std::get_if<ForwardTensorMaps>(&*walk.maps);
        if (launch.has_queue) arguments[count++] = static_cast<void*>(&queue);
        std::int64_t shared_bytes = launch.shared_bytes;
        if (!launch.used_shared_bytes.terms.empty())
            shared_bytes = std::min(shared_bytes, launch.used_shared_bytes.of(lengths));
        return function.launch({.x = static_cast<unsigned>(blocks)},
                               {.x = static_cast<unsigned>(launch.threads),
                                .y = static_cast<unsigned>(launch.threads_y)},
                               static_cast<unsigned>(shared_bytes), walk.call.stream.handle,
                               std::span(arguments).first(count), launch.starts_early);
    }

    static Error not_compiled() {
        return {ErrorCode::internal, "a kernel of this pass was not compiled"};
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
