#include "cpu/executable.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "cpu/access.h"
#include "cpu/emit_llvm.h"
#include "cpu/loader.h"
#include "cpu/tile.h"
#include "passes/hidden_scores.h"
#include "support/env.h"

namespace flexc::cpu {

namespace {

using Kind = passes::ArgumentSlot::Kind;

static_assert(double{kModerateInput} * kModerateInput * kMaxHeadDim * kModerateScale <=
              passes::kModerateScore);

// More threads than this do not help, and only make the workspace larger.
constexpr int kMaxThreads = 1024;

int thread_count(int asked, const BackendTable& table) {
    if (asked <= 0) asked = support::environment_count(support::Variable::threads).value_or(0);
    if (asked <= 0) asked = table.default_threads();
    return std::clamp(asked, 1, kMaxThreads);
}

bool reads_key_rows(const passes::Mod& mod) {
    return std::ranges::any_of(
        mod.order, [&](ir::NodeId id) { return mod.program.graph[id].op == ir::Op::kv_row; });
}

// The largest scores may differ by head.
bool shares_mask_results(const passes::Mod& mod, const Emitted& emitted) {
    return emitted.has_mask_function && !emitted.hides_scores &&
           !mod.dependence[mod.mask].has(analysis::Dependence::h);
}

class CompiledMod final : public Executable {
  public:
    CompiledMod(const passes::Mod& mod, const ExecutableOptions& options, const Backend& backend,
                const Emitted& emitted)
        : table_(*backend.table) {
        shape_ = {.dtype = options.dtype,
                  .kv_dtype = options.kv_dtype.value_or(options.dtype),
                  .head_dim = options.head_dim,
                  .head_dim_v = options.head_dim_v > 0 ? options.head_dim_v : options.head_dim,
                  .threads = thread_count(options.threads, table_),
                  .scratch_arrays = emitted.scratch_arrays,
                  .has_band = mod.band.found(),
                  .band_is_exact = mod.band.found() && mod.band.exact,
                  .hides_scores = emitted.hides_scores,
                  .shares_mask_results = shares_mask_results(mod, emitted),
                  .reads_key_rows = reads_key_rows(mod),
                  .learns_sink = !mod.sink_gradients.empty(),
                  .batch_invariant = options.batch_invariant};
        has_backward_ = mod.d_score != ir::kNoNode;
        find_gradients(mod);
    }
    ~CompiledMod() override {
        if (module_ != nullptr) table_.release(module_);
    }
    CompiledMod(const CompiledMod&) = delete;
    CompiledMod& operator=(const CompiledMod&) = delete;

    bool load(std::string_view object) {
        Received ignored;
        module_ = table_.load(object.data(), object.size(), ignored.sink());
        object_ = object;
        from_object_ = module_ != nullptr;
        return from_object_;
    }

    Result<void> build(const std::string& text, const support::Watch& watch) {
        auto built = watch.run<Built>([&table = table_, text, watch]() -> Result<Built> {
            Received object, error;
            Built result{{nullptr, table.release}, {}};
            const StopQuery stop = {
                [](void* user) { return static_cast<const support::Watch*>(user)->was_ended(); },
                const_cast<support::Watch*>(&watch)};
            result.module.reset(
                table.compile(text.data(), text.size(), stop, object.sink(), error.sink()));
            if (!result.module) return error.failure(ErrorCode::compile_failed, "");
            if (object.lost) return out_of_memory();
            result.object = std::move(object.text);
            return result;
        });
        if (!built) return built.error();
        module_ = built->module.release();
        object_ = std::move(built->object);
        return {};
    }

    std::size_t workspace_bytes(const Call& call, bool backward) const override {
        Prepared prepared;
        prepare(call, backward, prepared);
        return table_.workspace_bytes(prepared.launch);
    }

    Result<void> forward(const Call& call) const override { return run(call, false); }

    Result<void> backward(const Call& call) const override {
        if (!has_backward_)
            return Error{ErrorCode::invalid_option, "this kernel was compiled without backward"};
        return run(call, true);
    }

    std::span<const std::uint32_t> gradient_buffers() const override { return buffers_; }
    std::string_view object_bytes() const override { return object_; }
    bool from_object() const override { return from_object_; }
    int threads() const override { return shape_.threads; }

  private:
    struct Built {
        std::unique_ptr<BackendModule, void (*)(BackendModule*)> module;
        std::string object;
    };
    struct Prepared {
        std::array<GradientTarget, ir::kMaxBuffers> gradients;
        Launch launch;
    };

    void find_gradients(const passes::Mod& mod) {
        for (std::uint32_t buffer = 0; buffer < mod.program.buffers.size(); ++buffer)
            if (passes::has_gradient(mod, buffer)) buffers_.push_back(buffer);
        const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
        for (std::uint32_t buffer : buffers_) {
            GradientTarget target;
            target.separation = separation(mod, buffer);
            std::ranges::fill(target.stride_words, -1);
            for (std::size_t slot = 0; slot < slots.size(); ++slot) {
                if (slots[slot].index != buffer) continue;
                if (slots[slot].kind == Kind::gradient_data)
                    target.data_word = static_cast<int>(slot);
                if (slots[slot].kind == Kind::gradient_stride)
                    target.stride_words[slots[slot].dim] = static_cast<int>(slot);
            }
            targets_.push_back(target);
        }
    }

    void prepare(const Call& call, bool backward, Prepared& out) const {
        const std::size_t count =
            backward ? std::min({call.gradients.size(), targets_.size(), ir::kMaxBuffers}) : 0;
        for (std::size_t i = 0; i < count; ++i) {
            const TensorView& view = call.gradients[i];
            GradientTarget& target = out.gradients[i];
            target = targets_[i];
            target.data = static_cast<float*>(view.data);
            target.rank = view.rank;
            std::ranges::copy(view.shape, target.shape);
            std::ranges::copy(view.strides, target.strides);
        }
        out.launch = {.shape = &shape_,
                      .arguments = &call.arguments,
                      .sequences = call.sequences,
                      .words = call.words.data(),
                      .word_count = call.words.size(),
                      .gradients = out.gradients.data(),
                      .gradient_count = count,
                      .threads = call.threads.count > 0 ? std::min(call.threads.count, kMaxThreads)
                                                        : shape_.threads,
                      .pool = &call.threads,
                      .backward = backward,
                      .workspace = call.workspace};
    }

    Result<void> run(const Call& call, bool backward) const {
        if (backward && call.gradients.size() < targets_.size())
            return Error{ErrorCode::internal, "a gradient of a captured buffer has no tensor"};
        Prepared prepared;
        prepare(call, backward, prepared);
        Received error;
        auto* function = backward ? table_.backward : table_.forward;
        if (!function(module_, prepared.launch, error.sink()))
            return error.failure(ErrorCode::device, "the CPU kernel failed: ");
        return {};
    }

    const BackendTable& table_;
    KernelShape shape_;
    BackendModule* module_ = nullptr;
    std::vector<std::uint32_t> buffers_;
    std::vector<GradientTarget> targets_; // one per buffers_
    std::string object_;
    bool has_backward_ = false;
    bool from_object_ = false;
};

} // namespace

Result<std::shared_ptr<const Executable>> compile(const passes::Mod& mod,
                                                  const ExecutableOptions& options,
                                                  std::optional<std::string_view> object,
                                                  const support::Watch& watch) {
    auto found = backend();
    if (!found) return found.error();
    const Emitted emitted = emit_llvm(mod);
    auto compiled = std::make_shared<CompiledMod>(mod, options, **found, emitted);
    if (!object || !compiled->load(*object))
        if (auto built = compiled->build(emitted.text, watch); !built) return built.error();
    return std::shared_ptr<const Executable>(std::move(compiled));
}

Result<std::string> backend_identity() {
    auto found = backend();
    if (!found) return found.error();
    return (*found)->description;
}

} // namespace flexc::cpu
