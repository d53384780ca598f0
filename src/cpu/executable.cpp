#include "cpu/executable.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "cpu/access.h"
#include "cpu/emit_llvm.h"
#include "cpu/loader.h"
#include "support/env.h"

namespace flexc::cpu {

namespace {

using Kind = passes::ArgumentSlot::Kind;

ByteSink sink_into(std::string& text) {
    return {.write = [](void* user, const char* data,
                        std::size_t size) { static_cast<std::string*>(user)->append(data, size); },
            .user = &text};
}

// More threads than this help no machine and would only make the workspace large.
constexpr int kMaxThreads = 1024;

int thread_count(int asked, const BackendTable& table) {
    if (asked <= 0) {
        if (const auto text = support::environment(support::Variable::threads))
            std::from_chars(text->data(), text->data() + text->size(), asked);
    }
    if (asked <= 0) asked = table.default_threads();
    return std::clamp(asked, 1, kMaxThreads);
}

class CompiledMod final : public Executable {
  public:
    CompiledMod(const passes::Mod& mod, const ExecutableOptions& options, const Backend& backend,
                int scratch_arrays)
        : table_(*backend.table) {
        const ir::Node& mask = mod.program.graph[mod.mask];
        shape_ = {.dtype = options.dtype,
                  .head_dim = options.head_dim,
                  .head_dim_v = options.head_dim_v > 0 ? options.head_dim_v : options.head_dim,
                  .threads = thread_count(options.threads, table_),
                  .scratch_arrays = scratch_arrays,
                  .has_mask = mask.op != ir::Op::const_bool || mask.integer == 0,
                  .has_band = mod.band.found(),
                  .band_is_exact = mod.band.found() && mod.band.exact};
        has_backward_ = mod.d_score != ir::kNoNode;
        find_gradients(mod);
    }
    ~CompiledMod() override {
        if (module_ != nullptr) table_.release(module_);
    }
    CompiledMod(const CompiledMod&) = delete;
    CompiledMod& operator=(const CompiledMod&) = delete;

    bool load(std::string_view object) {
        std::string ignored;
        module_ = table_.load(object.data(), object.size(), sink_into(ignored));
        object_ = object;
        from_object_ = module_ != nullptr;
        return from_object_;
    }

    Result<void> build(const std::string& text) {
        std::string error;
        object_.clear();
        module_ = table_.compile(text.data(), text.size(), sink_into(object_), sink_into(error));
        if (module_ == nullptr) return Error{ErrorCode::compile_failed, error};
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
    static constexpr std::size_t kMaxBuffers = 32;
    struct Prepared {
        std::array<GradientTarget, kMaxBuffers> gradients;
        Launch launch;
    };

    void find_gradients(const passes::Mod& mod) {
        for (const passes::ReadGradient& gradient : mod.gradients)
            buffers_.push_back(mod.program.graph[gradient.read].symbol);
        std::ranges::sort(buffers_);
        const auto repeated = std::ranges::unique(buffers_);
        buffers_.erase(repeated.begin(), repeated.end());
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
            backward ? std::min({call.gradients.size(), targets_.size(), kMaxBuffers}) : 0;
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
                      .words = call.words.data(),
                      .word_count = call.words.size(),
                      .gradients = out.gradients.data(),
                      .gradient_count = count,
                      .backward = backward,
                      .workspace = call.workspace};
    }

    Result<void> run(const Call& call, bool backward) const {
        if (backward && call.gradients.size() < targets_.size())
            return Error{ErrorCode::internal, "a gradient of a captured buffer has no tensor"};
        Prepared prepared;
        prepare(call, backward, prepared);
        std::string error;
        auto* function = backward ? table_.backward : table_.forward;
        if (!function(module_, prepared.launch, sink_into(error)))
            return Error{ErrorCode::device, "the CPU kernel failed: " + error};
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
                                                  std::optional<std::string_view> object) {
    auto found = backend();
    if (!found) return found.error();
    const Emitted emitted = emit_llvm(mod);
    auto compiled = std::make_shared<CompiledMod>(mod, options, **found, emitted.scratch_arrays);
    if (!object || !compiled->load(*object))
        if (auto built = compiled->build(emitted.text); !built) return built.error();
    return std::shared_ptr<const Executable>(std::move(compiled));
}

Result<std::string> backend_identity() {
    auto found = backend();
    if (!found) return found.error();
    return (*found)->description;
}

} // namespace flexc::cpu
