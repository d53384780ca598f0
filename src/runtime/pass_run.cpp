#include "runtime/pass_run.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <variant>

#include "runtime/buffers.h"
#include "runtime/cuda_workspace.h"
#include "runtime/dense_bias_rows.h"
#include "runtime/gradient_sums.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using Function = std::optional<cuda::Function>;
using Maps = std::variant<std::monostate, ForwardTensorMaps, BackwardTensorMaps>;

// Returns the maps of the call's tensors that TMA needs in a launch of this pass; nothing if the
// driver makes none.
std::optional<Maps> maps_for(const plan::PassPlan& pass, const plan::Launch& launch,
                             const Call& call, const RunContext& context) {
    const plan::KernelConfig& main = pass.kernels[launch.kernel];
    switch (launch.tensor_maps) {
    case plan::Launch::Maps::none: break;
    case plan::Launch::Maps::forward:
    case plan::Launch::Maps::forward_queries: {
        auto maps = cuda::forward_maps(main, launch.tensor_maps == plan::Launch::Maps::forward,
                                       call.attention, context.dtype, context.form);
        if (!maps) return {};
        for (const plan::CopiedBias& biases : pass.copied_biases)
            if (const auto rows = rows_of(biases, call))
                cuda::add_bias_tensor_map(main, *rows, *maps);
        return *maps;
    }
    case plan::Launch::Maps::backward: {
        auto maps = cuda::backward_maps(main, call.attention, context.dtype, context.form);
        if (!maps) return {};
        return *maps;
    }
    }
    return Maps{};
}

// One call of one pass, and what its steps share.
class PassRun {
  public:
    // words: those of `call`, which a launch may replace.
    PassRun(const LoadedPass& pass, const Call& call, Words& words, const RunContext& context)
        : pass_(pass), call_(call), words_(words), context_(context),
          workspace_(pass.plan.workspace, call), argument_{call.attention},
          stores_first_(are_stored_first(pass.plan.stored_gradients, call)) {}

    Result<void> run() {
        const plan::PassPlan& plan = pass_.plan;
        workspace_.name_in(argument_, call_.workspace.data, stores_first_);
        const plan::CallLengths lengths = lengths_of(call_.attention);
        for (const plan::LengthArgument& one : plan.length_arguments)
            argument_.set(one.argument, static_cast<int>(one.value.of(lengths)));
        if (const PlacedRegion* sums = workspace_.find(plan::regions::exact_sums))
            name_exact_sums(plan.exact_gradients, call_, memory_of(*sums), words_);
        for (std::size_t i = 0; i < plan.steps.size(); ++i) {
            const auto visit = [&](const auto& step) { return execute(step, pass_.functions[i]); };
            if (auto done = std::visit(visit, plan.steps[i]); !done) return done;
        }
        return {};
    }

  private:
    void* memory_of(const PlacedRegion& region) const {
        return static_cast<std::byte*>(call_.workspace.data) + region.offset;
    }

    Result<void> execute(const plan::Fill& fill, const Function&) {
        const PlacedRegion* region = workspace_.find(fill.region);
        if (region == nullptr) return {};
        if (region->region->of_stored_gradients && !stores_first_) return {};
        return cuda::fill_async(memory_of(*region), 0, region->bytes, call_.stream.handle);
    }

    Result<void> execute(const plan::FillGradients&, const Function&) {
        if (call_.accumulate_gradients) return {};
        const plan::StoredGradients& stored = pass_.plan.stored_gradients;
        for (std::uint32_t i = 0; i < call_.gradients.size(); ++i) {
            const TensorView& view = call_.gradients[i];
            if (!view || (stores_first_ && stored.holds(i)) || are_lines_stored(stored, call_, i))
                continue;
            if (auto done = cuda::fill_async(view.data, 0, bytes_of(view), call_.stream.handle);
                !done)
                return done;
        }
        return {};
    }

    // Heads that add to the same gradients in order have launches of their own, one after the
    // other.
    Result<void> execute(const plan::Launch& step, const Function& function) {
        const int heads = call_.attention.batch * call_.attention.kv_heads;
        const int at_once =
            step.by_heads ? heads_of_launch(pass_.plan.heads_at_once, call_.attention) : heads;
        if (at_once == heads) return launch(step, *function, 1);
        for (int first = 0; first < heads; first += at_once) {
            words_.set(pass_.plan.first_head_word, static_cast<std::uint64_t>(first));
            if (auto done = launch(step, *function, heads / at_once); !done) return done;
        }
        return {};
    }

    Result<void> execute(const plan::RoundSums& step, const Function& function) {
        const plan::PassPlan& plan = pass_.plan;
        const PlacedRegion* sums = workspace_.find(plan::regions::exact_sums);
        return round_exact_sums(plan.exact_gradients, call_, memory_of(*sums),
                                plan.kernels[step.kernel], *function);
    }

    Result<void> execute(const plan::RoundGradients& step, const Function& function) {
        for (std::size_t i = 0; i < call_.rounded_gradients.size(); ++i)
            if (const TensorView& rounded = call_.rounded_gradients[i])
                if (auto done =
                        round_sums(call_.gradients[i], rounded, pass_.plan.kernels[step.kernel],
                                   *function, call_.stream);
                    !done)
                    return done;
        return {};
    }

    // launches: how many share the step's work evenly.
    Result<void> launch(const plan::Launch& step, const cuda::Function& function, int launches) {
        const AttentionArguments& attention = call_.attention;
        if (attention.batch == 0) return {}; // there are no requests
        const plan::FewWork* few_work = call_.few_work;
        if (step.of_many_rows &&
            (attention.q_len <= kMostFewRows / (attention.heads / attention.kv_heads) ||
             (few_work != nullptr && !few_work->has_others)))
            return {};
        plan::CallLengths lengths = lengths_of(attention);
        std::int64_t blocks = step.blocks.of(lengths) / launches;
        if (few_work != nullptr && !step.known_blocks.terms.empty()) {
            lengths.few = *few_work;
            blocks = std::min(blocks, step.known_blocks.of(lengths));
        }
        if (blocks == 0) return {}; // no request has queries for it, or needs it
        if (blocks > INT32_MAX)
            return Error{ErrorCode::limit,
                         formatted("{} needs {} blocks; a launch can have {}: split the batch",
                                   step.entry, blocks, INT32_MAX)};
        int* queue = nullptr;
        const std::int64_t most = std::int64_t{context_.multiprocessors} * step.blocks_at_once;
        if (step.is_persistent && blocks > most) {
            blocks = most;
            if (step.has_queue) queue = context_.queues->of(call_.stream.handle);
        }
        KernelArgument argument = argument_;
        if (step.block_mask)
            argument.attention.block_mask =
                context_.block_masks->of(*step.block_mask, attention, call_.block_mask);
        if (auto made = make_maps(step); !made) return made;
        // The driver copies all before launch() returns.
        std::array<void*, 4> arguments = {&argument, const_cast<void*>(words_of(call_))};
        std::size_t count = 2;
        if (step.tensor_maps == plan::Launch::Maps::backward)
            arguments[count++] = std::get_if<BackwardTensorMaps>(&*maps_);
        else if (step.tensor_maps != plan::Launch::Maps::none)
            arguments[count++] = std::get_if<ForwardTensorMaps>(&*maps_);
        if (step.has_queue) arguments[count++] = static_cast<void*>(&queue);
        std::int64_t shared_bytes = step.shared_bytes;
        if (!step.used_shared_bytes.terms.empty())
            shared_bytes = std::min(shared_bytes, step.used_shared_bytes.of(lengths));
        return function.launch(
            {.x = static_cast<unsigned>(blocks)},
            {.x = static_cast<unsigned>(step.threads), .y = static_cast<unsigned>(step.threads_y)},
            static_cast<unsigned>(shared_bytes), call_.stream.handle,
            std::span(arguments).first(count), step.starts_early);
    }

    // Makes the tensor maps of a launch, unless the launch before has the same.
    Result<void> make_maps(const plan::Launch& step) {
        if (step.tensor_maps == plan::Launch::Maps::none) return {};
        if (maps_ && kernel_of_maps_ == step.kernel) return {};
        maps_ = maps_for(pass_.plan, step, call_, context_);
        kernel_of_maps_ = step.kernel;
        if (!maps_) return Error{ErrorCode::device, "the driver made no tensor map"};
        return {};
    }

    const LoadedPass& pass_;
    const Call& call_;
    Words& words_;
    const RunContext& context_;
    PlacedWorkspace workspace_;
    KernelArgument argument_;
    bool stores_first_; // gradients that blocks store before others add to them
    std::optional<Maps> maps_;
    std::size_t kernel_of_maps_ = 0; // of PassPlan::kernels, which the maps are for
};

} // namespace

Result<void> run_pass(const LoadedPass& pass, const Call& given, const RunContext& context) {
    Words words(given.words);
    Call call = given;
    call.words = words.all();
    // A graph stays right for other lengths than those of today.
    if (call.few_work != nullptr && cuda::stream_state(call.stream.handle).is_capturing)
        call.few_work = nullptr;
    if (const std::string why = why_not(pass.plan, call, context.form); !why.empty())
        return Error{ErrorCode::invalid_option,
                     formatted("this call is not what its plan was made for: {}; give plan() "
                               "such tensors (PlanOptions::forward, backward) and the buffers",
                               why)};
    return PassRun(pass, call, words, context).run();
}

} // namespace flexc::runtime
