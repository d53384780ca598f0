#include "runtime/cuda_executable.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "common/expanded.h"
#include "cuda/driver.h"
#include "cuda/select.h"
#include "cuda/tensor_maps.h"
#include "runtime/buffers.h"
#include "runtime/cuda_workspace.h"
#include "runtime/map_memory.h"
#include "runtime/tile_maps.h"
#include "runtime/tile_queues.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using cuda::KernelKind;

class CudaExecutable final : public Executable {
  public:
    explicit CudaExecutable(const CudaOptions& options)
        : options_(options), map_memory_(std::make_shared<MapMemory>(options.device)) {}
    CudaExecutable(const CudaExecutable&) = delete;
    CudaExecutable& operator=(const CudaExecutable&) = delete;

    ~CudaExecutable() override {
        // At process end the driver may be gone; there is nothing to do about a failure here.
        auto scope = cuda::ContextScope::enter(options_.device);
        if (scope && flag_ != nullptr) (void)cuda::release(flag_);
        queues_.reset();
    }

    Result<void> load(std::vector<CudaKernel> kernels) {
        auto scope = cuda::ContextScope::enter(options_.device);
        if (!scope) return scope.error();
        auto device = cuda::device_info(options_.device);
        if (!device) return device.error();
        multiprocessors_ = device->multiprocessors;
        for (CudaKernel& kernel : kernels) {
            auto one = load_one(kernel);
            if (!one) return one.error();
            // NVRTC's log is empty when it answers from a cache of its own; the driver always
            // knows.
            if (const auto registers = one->function.registers())
                kernel.info.registers = *registers;
            if (one->config.hopper && !queues_) {
                queues_.emplace();
                if (auto done = queues_->allocate(); !done) return done;
            }
            loaded_.push_back(std::move(*one));
            infos_.push_back(std::move(kernel.info));
        }
        if (auto done = load_maps(); !done) return done;
        if (!options_.report_out_of_range) return {};
        auto flag = cuda::allocate(sizeof(std::int32_t));
        if (!flag) return flag.error();
        flag_ = *flag;
        return cuda::fill_async(flag_, 0, sizeof(std::int32_t), nullptr);
    }

    Result<void> forward(const Call& call) const override {
        auto scope = cuda::ContextScope::enter(options_.device, call.stream.handle);
        if (!scope) return scope.error();
        const Loaded* kernel = find(KernelKind::forward);
        if (kernel == nullptr || !kernel->config.hopper)
            return launch(kernel, call.attention, call);
        if (suits_scale(kernel->config, call.attention.scale) &&
            starts_grid(kernel->config, call.attention))
            if (auto maps = cuda::forward_maps(kernel->config, call.attention, options_.dtype,
                                               options_.head_dim, options_.head_dim_v)) {
                AttentionArguments attention = call.attention;
                if (auto done = expand(*kernel, attention, call); !done) return done;
                if (options_.copied_biases)
                    if (const auto biases = rows_of(*options_.copied_biases, call))
                        cuda::add_bias_map(kernel->config, *biases, *maps);
                return launch(kernel, attention, call, &*maps);
            }
        auto generic = substitute(KernelKind::forward, Substitute::any_layout);
        if (!generic) return generic.error();
        return launch(*generic, call.attention, call);
    }

    Result<void> backward(const Call& given) const override {
        auto scope = cuda::ContextScope::enter(options_.device, given.stream.handle);
        if (!scope) return scope.error();
        Words words(given.words);
        Call call = given;
        call.words = words.all();
        BackwardForm form = backward_form();
        std::optional<BackwardMaps> maps;
        const Loaded* fused = find(KernelKind::backward_fused);
        if (form == BackwardForm::hopper) {
            if (!have_aligned_rows(options_.copied_matrices, call)) {
                auto other = substitute(KernelKind::backward_fused, Substitute::single_elements);
                if (!other) return other.error();
                fused = *other;
            }
            const cuda::KernelConfig& config = fused->config;
            if (config.is_hopper_backward && starts_grid(config, call.attention))
                maps = cuda::backward_maps(config, call.attention, options_.dtype,
                                           options_.head_dim, options_.head_dim_v);
            if (!maps) form = options_.deterministic ? BackwardForm::split : BackwardForm::fused;
        }
        const bool stores_first = form == BackwardForm::hopper && fused->config.adds_matrices &&
                                  !call.accumulate_gradients &&
                                  options_.stored_gradients.are_whole(call);
        for (std::uint32_t i = 0; i < call.gradients.size() && !call.accumulate_gradients; ++i) {
            const TensorView& view = call.gradients[i];
            if (!view || (stores_first && options_.stored_gradients.holds(i))) continue;
            if (auto done = cuda::fill_async(view.data, 0, bytes_of(view), call.stream.handle);
                !done)
                return done;
        }
        const BackwardWorkspace parts = backward_workspace(call, options_, form);
        auto* base = static_cast<std::byte*>(call.workspace.data);
        name_exact_sums(options_.exact_gradients, call, base + parts.exact_sums, words);
        AttentionArguments attention = call.attention;
        attention.delta = reinterpret_cast<float*>(base + parts.delta);
        attention.dq_accumulator = reinterpret_cast<float*>(base + parts.dq_accumulator);
        attention.origins = reinterpret_cast<float*>(base + parts.origins);
        attention.distance_sums = reinterpret_cast<float*>(base + parts.distance_sums);
        attention.distance_values = reinterpret_cast<float*>(base + parts.distance_values);
        attention.stored_tiles =
            stores_first ? reinterpret_cast<int*>(base + parts.stored_tiles) : nullptr;
        if (form == BackwardForm::hopper && fused->config.reports_additions) {
            attention.blocks_done = reinterpret_cast<int*>(base + parts.blocks_done);
            attention.blocks_of_head =
                (attention.kv_len + fused->config.key_tile - 1) / fused->config.key_tile;
        }
        if (form == BackwardForm::hopper && fused->config.blocks_stay)
            attention.tiles_taken = reinterpret_cast<int*>(base + parts.tiles_taken);
        if (form == BackwardForm::hopper && fused->config.stores_dq_first)
            attention.slab_states = reinterpret_cast<int*>(base + parts.slab_states);
        const Loaded* expand = form == BackwardForm::hopper ? find(KernelKind::expand) : nullptr;
        const Loaded* fold = form == BackwardForm::hopper ? find(KernelKind::fold) : nullptr;
        const auto clear = [&](void* sums, std::size_t bytes) {
            return cuda::fill_async(sums, 0, bytes, call.stream.handle);
        };
        if (form == BackwardForm::fused)
            if (auto done = clear(attention.dq_accumulator, parts.dq_bytes); !done) return done;
        if (fold != nullptr)
            if (auto done = clear(attention.distance_sums, parts.distance_bytes); !done)
                return done;
        if (parts.turn_bytes != 0)
            if (auto done = clear(base + parts.turns, parts.turn_bytes); !done) return done;
        if (stores_first)
            if (auto done = clear(base + parts.stored_tiles, parts.stored_tile_bytes); !done)
                return done;
        if (parts.exact_bytes != 0)
            if (auto done = clear(base + parts.exact_sums, parts.exact_bytes); !done) return done;
        if (expand != nullptr)
            if (auto done = launch(expand, attention, call); !done) return done;
        constexpr std::array kFused = {KernelKind::delta, KernelKind::backward_fused,
                                       KernelKind::convert};
        constexpr std::array kSplit = {KernelKind::delta, KernelKind::backward_dkdv,
                                       KernelKind::backward_dq};
        for (const KernelKind kind : form == BackwardForm::split ? kSplit : kFused) {
            const Loaded* kernel = kind == KernelKind::backward_fused ? fused : find(kind);
            if (form != backward_form()) {
                auto generic = substitute(kind, Substitute::any_layout);
                if (!generic) return generic.error();
                kernel = *generic;
            }
            const bool takes_maps = maps && kind == KernelKind::backward_fused;
            auto done = kind == KernelKind::backward_dkdv
                            ? launch_in_turn(kernel, attention, call, words)
                            : launch(kernel, attention, call, takes_maps ? &*maps : nullptr, 1,
                                     form == BackwardForm::hopper && kind != KernelKind::delta);
            if (!done) return done;
        }
        if (fold != nullptr)
            if (auto done = launch(fold, attention, call); !done) return done;
        if (parts.exact_bytes == 0) return {};
        const Loaded* rounding = find(KernelKind::round_sums);
        if (rounding == nullptr) return not_compiled();
        return round_exact_sums(options_.exact_gradients, call, base + parts.exact_sums,
                                rounding->config, rounding->function);
    }

    Result<void> round(const TensorView& from, const TensorView& to, Stream stream) const override {
        auto scope = cuda::ContextScope::enter(options_.device, stream.handle);
        if (!scope) return scope.error();
        const Loaded* kernel = find(KernelKind::round_gradients);
        if (kernel == nullptr) return not_compiled();
        return round_sums(from, to, kernel->config, kernel->function, stream);
    }

    // Enough for every form that a call may take.
    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        if (backward) return backward_workspace(call, options_, backward_form()).bytes;
        const Loaded* kernel = find(KernelKind::forward);
        if (kernel == nullptr || !kernel->config.hopper) return 0;
        return forward_workspace(call.attention, kernel->config.hopper->expanded).bytes;
    }

    std::size_t map_bytes(const Call& call) const override {
        return maps_ ? maps_->bytes(call.attention) : 0;
    }
    Result<std::shared_ptr<void>> allocate_map(std::size_t bytes) const override {
        return map_memory_->allocate(bytes);
    }
    Result<void> build_map(const Call& call) const override {
        auto scope = cuda::ContextScope::enter(options_.device, call.stream.handle);
        if (!scope) return scope.error();
        return maps_->build(call.attention, words_of(call), call.map, call.stream.handle);
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
    struct Loaded {
        cuda::KernelConfig config;
        cuda::Module module;
        cuda::Function function;
        std::optional<cuda::Function> expand; // of Hopper's forward: comes before it
    };

    Result<Loaded> load_one(CudaKernel& kernel) const {
        auto module = cuda::Module::load(options_.device, kernel.cubin);
        if (!module) return module.error();
        auto function =
            module->function(std::string(kernel.config.entry), kernel.config.shared_bytes);
        if (!function) return function.error();
        Loaded loaded{std::move(kernel.config), std::move(*module), *function, {}};
        if (loaded.config.hopper && loaded.config.hopper->expanded.any()) {
            auto expand = loaded.module.function("flexc_forward_expand_sm90", 0);
            if (!expand) return expand.error();
            loaded.expand = *expand;
        }
        return loaded;
    }

    Result<void> load_maps() {
        const Loaded* planner = find(KernelKind::plan);
        if (planner == nullptr) return {};
        auto maps = TileMaps::load(planner->module, planner->config);
        if (!maps) return maps.error();
        maps_ = std::move(*maps);
        for (const Loaded& one : loaded_)
            if (one.config.has_map) maps_->add(one.config);
        return {};
    }

    // A program without arguments has an empty struct, whose one byte is never read.
    static const void* words_of(const Call& call) {
        static constexpr std::uint64_t kNoWords = 0;
        return call.words.empty() ? &kNoWords : call.words.data();
    }

    // Compiled by the first call that needs it, without a lock: of calls at the same time, each
    // compiles, and the first to end is kept.
    Result<const Loaded*> substitute(KernelKind kind, Substitute what) const {
        const std::pair key(kind, what);
        const auto known = [&]() -> const Loaded* {
            const std::lock_guard lock(substitute_mutex_);
            const auto found = substitutes_.find(key);
            return found == substitutes_.end() ? nullptr : &found->second;
        };
        if (const Loaded* one = known()) return one;
        auto compiled = options_.compile_substitute(kind, what);
        if (!compiled) return compiled.error();
        auto one = load_one(*compiled);
        if (!one) return one.error();
        const std::lock_guard lock(substitute_mutex_);
        return &substitutes_.try_emplace(key, std::move(*one)).first->second;
    }

    BackwardForm backward_form() const {
        const Loaded* fused = find(KernelKind::backward_fused);
        if (fused == nullptr) return BackwardForm::split;
        return fused->config.is_hopper_backward ? BackwardForm::hopper : BackwardForm::fused;
    }

    // A maximum of products is one of scores only when the scale is positive, and what is added to
    // products is divided by it.
    static bool suits_scale(const cuda::KernelConfig& config, float scale) {
        return config.hopper->multiplies_grid_rows ? scale >= 0x1p-20F : scale > 0;
    }

    // Keys as a grid have to start with a row of it.
    static bool starts_grid(const cuda::KernelConfig& config, const AttentionArguments& attention) {
        return config.key_width == 0 || attention.kv_offset % config.key_width == 0;
    }

    const Loaded* find(KernelKind kind) const {
        const auto found = std::find_if(loaded_.begin(), loaded_.end(), [kind](const Loaded& one) {
            return one.config.kind == kind;
        });
        return found == loaded_.end() ? nullptr : &*found;
    }

    static Error not_compiled() {
        return {ErrorCode::internal, "a kernel of this pass was not compiled"};
    }

    // Heads that add to the same gradients one by one are launched one after the other.
    Result<void> launch_in_turn(const Loaded* kernel, const AttentionArguments& attention,
                                const Call& call, Words& words) const {
        const int heads = attention.batch * attention.kv_heads;
        const int at_once = options_.head_turns.heads_of_launch(attention);
        if (at_once == heads) return launch(kernel, attention, call);
        for (int first = 0; first < heads; first += at_once) {
            words.set(options_.head_turns.word, static_cast<std::uint64_t>(first));
            if (auto done = launch(kernel, attention, call, nullptr, heads / at_once); !done)
                return done;
        }
        return {};
    }

    // Computes what the forward kernel finds in the workspace, and says where.
    Result<void> expand(const Loaded& kernel, AttentionArguments& attention,
                        const Call& call) const {
        if (!kernel.expand) return {};
        const ForwardWorkspace parts = forward_workspace(attention, kernel.config.hopper->expanded);
        if (parts.blocks > INT32_MAX) return too_many_blocks(kernel, parts.blocks);
        auto* base = static_cast<std::byte*>(call.workspace.data);
        attention.distance_values = reinterpret_cast<float*>(base + parts.distance_values);
        attention.key_values = reinterpret_cast<float*>(base + parts.key_values);
        const std::array<void*, 2> arguments = {&attention, const_cast<void*>(words_of(call))};
        return kernel.expand->launch({.x = static_cast<unsigned>(parts.blocks)}, kExpandedStep, 0,
                                     call.stream.handle, arguments);
    }

    static Error too_many_blocks(const Loaded& kernel, std::int64_t blocks) {
        return Error{ErrorCode::limit,
                     formatted("{} needs {} blocks; a launch can have {}: split the batch",
                               kernel.config.entry, blocks, INT32_MAX)};
    }

    // launches: that share the work evenly. starts_early: as Function::launch.
    Result<void> launch(const Loaded* kernel, AttentionArguments attention, const Call& call,
                        const void* maps = nullptr, int launches = 1,
                        bool starts_early = false) const {
        if (kernel == nullptr) return not_compiled();
        std::int64_t blocks = cuda::grid_blocks(kernel->config, attention) / launches;
        if (blocks > INT32_MAX) return too_many_blocks(*kernel, blocks);
        int* queue = nullptr;
        if (kernel->config.hopper && blocks > multiprocessors_) {
            blocks = multiprocessors_;
            queue = queues_->of(call.stream.handle);
        }
        if (kernel->config.blocks_stay) blocks = std::min<std::int64_t>(blocks, multiprocessors_);
        if (kernel->config.has_map) attention.map = maps_->of(kernel->config, attention, call.map);
        // The driver copies all before launch() returns.
        const std::array<void*, 4> arguments = {&attention, const_cast<void*>(words_of(call)),
                                                const_cast<void*>(maps),
                                                static_cast<void*>(&queue)};
        return kernel->function.launch(
            {.x = static_cast<unsigned>(blocks)}, static_cast<unsigned>(kernel->config.warps) * 32u,
            static_cast<unsigned>(kernel->config.shared_bytes), call.stream.handle,
            std::span(arguments).first(maps == nullptr         ? 2
                                       : kernel->config.hopper ? 4
                                                               : 3),
            starts_early);
    }

    const CudaOptions options_;
    int multiprocessors_ = 1;
    std::optional<TileQueues> queues_;
    std::optional<TileMaps> maps_; // where some kernel asks for one
    std::shared_ptr<MapMemory> map_memory_;
    mutable std::mutex substitute_mutex_;
    mutable std::map<std::pair<KernelKind, Substitute>, Loaded> substitutes_;
    std::vector<Loaded> loaded_;
    std::vector<KernelInfo> infos_;
    void* flag_ = nullptr;
};

} // namespace

Result<std::shared_ptr<const Executable>> load_cuda(std::vector<CudaKernel> kernels,
                                                    const CudaOptions& options) {
    auto executable = std::make_shared<CudaExecutable>(options);
    if (auto loaded = executable->load(std::move(kernels)); !loaded) return loaded.error();
    return std::shared_ptr<const Executable>(std::move(executable));
}

} // namespace flexc::runtime
