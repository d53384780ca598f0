// Requests of their own lengths, and results that are merged, by the C interface.
#include "call_changes.h"
#include "call_status.h"
#include "call_subjects.h"
#include "requests.h"

namespace flexc::fuzz {

namespace {

// The arrays of lengths in C, as a caller has them on the host, and as tensors.
class Arrays {
  public:
    Arrays(Arguments& arguments, const Lengths& lengths) {
        host_ = sized<flexc_lengths>();
        tensors_ = sized<flexc_length_tensors>();
        put(arguments, lengths.cu_seqlens_q, host_.cu_seqlens_q, host_.cu_seqlens_q_count,
            tensors_.cu_seqlens_q);
        put(arguments, lengths.cu_seqlens_k, host_.cu_seqlens_k, host_.cu_seqlens_k_count,
            tensors_.cu_seqlens_k);
        put(arguments, lengths.seqused_q, host_.seqused_q, host_.seqused_q_count,
            tensors_.seqused_q);
        put(arguments, lengths.seqused_k, host_.seqused_k, host_.seqused_k_count,
            tensors_.seqused_k);
        put(arguments, lengths.page_table, host_.page_table, host_.page_table_count,
            tensors_.page_table);
        put(arguments, lengths.page_indptr, host_.page_indptr, host_.page_indptr_count,
            tensors_.page_indptr);
        put(arguments, lengths.page_indices, host_.page_indices, host_.page_indices_count,
            tensors_.page_indices);
        put(arguments, lengths.last_page_len, host_.last_page_len, host_.last_page_len_count,
            tensors_.last_page_len);
        put(arguments, lengths.query_starts, host_.query_starts, host_.query_starts_count,
            tensors_.query_starts);
        host_.page_size = lengths.page_size;
        host_.pages = lengths.pages;
        host_.query_start = static_cast<std::int32_t>(lengths.query_start);
    }

    const flexc_lengths& on_host() const { return host_; }
    const flexc_length_tensors& on_device() const { return tensors_; }
    // What a plan is told where the arrays come later.
    flexc_lengths of_plan() const {
        auto later = sized<flexc_lengths>();
        later.page_size = host_.page_size;
        later.pages = host_.pages;
        later.query_start = host_.query_start;
        later.on_device = 1;
        return later;
    }

  private:
    static void put(Arguments& arguments, std::span<const std::int32_t> from,
                    const std::int32_t*& data, std::size_t& count, const flexc_tensor*& tensor) {
        if (from.empty()) return;
        tensor = arguments.copy(from);
        data = static_cast<const std::int32_t*>(tensor->data);
        count = from.size();
    }

    flexc_lengths host_;
    flexc_length_tensors tensors_;
};

struct RequestProgram {
    const char* text;
    bool has_bias; // bias: f32[N] grad
};
constexpr std::array<RequestProgram, 4> kRequestPrograms = {
    {{"score * 2", false},
     {"mask_mod = q_idx >= kv_idx", false},
     {"buffer bias: f32[12] grad\nscore_mod = score + bias[q_idx - kv_idx + 6]\nsink = h * 0.5",
      true},
     {"buffer bias: f32[12] grad\nscore_mod = score + bias[kv_row % 12]\n"
      "mask_mod = (q_row + kv_row) % 3 != 0",
      true}}};

class RequestCalls : private CallStatus {
  public:
    explicit RequestCalls(Arguments& arguments)
        : CallStatus(arguments.bytes()), arguments_(arguments), bytes_(arguments.bytes()) {}
    RequestCalls(const RequestCalls&) = delete;
    RequestCalls& operator=(const RequestCalls&) = delete;
    ~RequestCalls() {
        flexc_plan_free(plan_);
        flexc_kernel_free(kernel_);
    }

    void run() {
        compile();
        sizes_ = {.batch = static_cast<std::int64_t>(bytes_.below(4)),
                  .heads = 2,
                  .kv_heads = 1,
                  .q_len = 5,
                  .kv_len = 7};
        Requests requests = any_requests();
        if (!plan(requests)) return;
        for (int steps = 0; steps < 4; ++steps) {
            if (bytes_.chance(50)) requests = update(requests);
            launch(requests);
        }
    }

  private:
    void compile() {
        flexc_compile_options options = usual_options();
        queries_ = bytes_.chance(75) ? Layout::ragged : Layout::dense;
        keys_ = bytes_.pick(std::array{Layout::ragged, Layout::paged, Layout::dense});
        if (queries_ == Layout::dense && keys_ == Layout::dense) queries_ = Layout::ragged;
        options.query_layout = static_cast<std::int32_t>(queries_);
        options.key_layout = static_cast<std::int32_t>(keys_);
        program_ = &bytes_.pick(kRequestPrograms);
        accepted(flexc_compile(program_->text, &options, &kernel_, out()), "a program of requests");
        auto info = sized<flexc_kernel_info>();
        accepted(flexc_kernel_get(kernel_, &info, out()), "a kernel");
        has_backward_ = info.forward_only == 0;
    }

    Requests any_requests() { return {queries_, keys_, sizes_, arguments_.random()}; }

    Requests damaged(const Requests& requests) {
        Requests result = requests;
        for (auto times = bytes_.below(3) + 1; times > 0; --times)
            result.damage(arguments_.random());
        return result;
    }

    bool plan(const Requests& requests) {
        auto sizes = sized<flexc_sizes>();
        sizes.batch = sizes_.batch;
        sizes.heads = sizes_.heads;
        sizes.kv_heads = sizes_.kv_heads;
        sizes.q_len = sizes_.q_len;
        sizes.kv_len = sizes_.kv_len;
        auto options = sized<flexc_plan_options>();
        if (bytes_.chance(20)) {
            const Arrays wrong(arguments_, damaged(requests).lengths());
            options.lengths = arguments_.given(wrong.on_host());
            done(flexc_plan_create(kernel_, &sizes, nullptr, 0, nullptr, &options, &plan_, out()));
            flexc_plan_free(plan_);
            plan_ = nullptr;
        }
        const Arrays right(arguments_, requests.lengths());
        const flexc_lengths later = right.of_plan();
        const bool comes_later = bytes_.chance(25);
        options.lengths = comes_later ? &later : &right.on_host();
        if (bytes_.chance(10)) options.q_offset = 1;
        const auto status =
            flexc_plan_create(kernel_, &sizes, nullptr, 0, nullptr, &options, &plan_, out());
        if (options.q_offset != 0) {
            refused(status, "an offset of requests");
            return false;
        }
        accepted(status, "a plan of requests");
        if (comes_later)
            accepted(flexc_plan_update_length_tensors(kernel_, plan_, &right.on_device(), nullptr,
                                                      out()),
                     "lengths that come later");
        return true;
    }

    // Requests that the plan has now: others, or, where these could not be, the same.
    Requests update(const Requests& requests) {
        if (bytes_.chance(40)) {
            const Arrays wrong(arguments_, damaged(requests).lengths());
            done(bytes_.chance(50)
                     ? flexc_plan_update_lengths(kernel_, plan_, arguments_.given(wrong.on_host()),
                                                 nullptr, out())
                     : flexc_plan_update_length_tensors(
                           kernel_, plan_, arguments_.given(wrong.on_device()), nullptr, out()));
        }
        Requests next = any_requests();
        const Arrays right(arguments_, next.lengths());
        accepted(flexc_plan_update_lengths(kernel_, plan_, &right.on_host(), nullptr, out()),
                 "an update of lengths");
        return next;
    }

    void launch(const Requests& requests) {
        const auto input = [&](const std::vector<std::int64_t>& shape) {
            return arguments_.input(DType::f32, shape);
        };
        auto call = sized<flexc_backward_tensors>();
        call.q = input(requests.q_shape(kHeadDim));
        call.k = input(requests.kv_shape(kHeadDim));
        call.v = input(requests.kv_shape(kHeadDim));
        call.o = arguments_.output(requests.q_shape(kHeadDim));
        call.lse = arguments_.output(requests.q_rows_shape());
        Named buffers, gradients;
        if (program_->has_bias) {
            buffers.push_back(named("bias", input({12})));
            gradients.push_back(named("bias", arguments_.output({12})));
        }
        auto workspace = sized<flexc_workspace>();
        const Workspace memory = arguments_.workspace(flexc_plan_workspace_bytes(plan_));
        workspace.data = memory.data;
        workspace.bytes = memory.bytes;
        auto forward = sized<flexc_forward_tensors>();
        forward.q = call.q;
        forward.k = call.k;
        forward.v = call.v;
        forward.o = call.o;
        forward.lse = call.lse;
        const Arrays known(arguments_, requests.lengths());
        if (bytes_.chance(30)) forward.lengths = &known.on_device();
        const auto launched = [&] {
            return flexc_forward(kernel_, plan_, &forward, buffers.data(), buffers.size(),
                                 &workspace, nullptr, out());
        };
        accepted(launched(), "a forward of requests");
        if (bytes_.chance(30)) {
            const std::array<const flexc_tensor**, 4> tensors = {&forward.q, &forward.k, &forward.v,
                                                                 &forward.o};
            const flexc_tensor*& broken = *bytes_.pick(tensors);
            broken = bytes_.chance(30) ? nullptr : arguments_.of_other_form(*broken);
            return refused(launched(), "a wrong forward of requests");
        }
        if (!has_backward_) return;
        call.d_out = input(requests.q_shape(kHeadDim));
        call.dq = arguments_.output(requests.q_shape(kHeadDim));
        call.dk = arguments_.output(requests.kv_shape(kHeadDim));
        call.dv = arguments_.output(requests.kv_shape(kHeadDim));
        accepted(flexc_backward(kernel_, plan_, &call, buffers.data(), buffers.size(),
                                gradients.data(), gradients.size(), &workspace, nullptr, out()),
                 "a backward of requests");
    }

    Arguments& arguments_;
    Bytes& bytes_;
    const RequestProgram* program_ = nullptr;
    Layout queries_ = Layout::dense, keys_ = Layout::dense;
    Sizes sizes_;
    bool has_backward_ = false;
    flexc_kernel* kernel_ = nullptr;
    flexc_plan* plan_ = nullptr;
};

} // namespace

void call_with_requests(Arguments& arguments) { RequestCalls(arguments).run(); }

void merge_results(Arguments& arguments) {
    Bytes& bytes = arguments.bytes();
    CallStatus status(bytes);
    std::array<flexc_partial_result, 3> parts{};
    const std::vector<std::int64_t> rows = {2, 3};
    for (flexc_partial_result& part : parts) {
        part = sized<flexc_partial_result>();
        part.o = arguments.input(DType::f32, {2, 3, 4});
        part.lse = arguments.input(DType::f32, rows);
    }
    const flexc_tensor *o = arguments.output({2, 3, 4}), *lse = arguments.output(rows);
    if (bytes.chance(30)) lse = nullptr;
    const std::size_t count = bytes.below(parts.size() + 1);
    status.accepted(flexc_merge_states(parts.data(), count, o, lse, status.out()), "a merge");
    std::vector<const flexc_tensor**> tensors = {&o};
    for (std::size_t i = 0; i < count; ++i) {
        tensors.push_back(&parts[i].o);
        tensors.push_back(&parts[i].lse);
    }
    const flexc_tensor*& broken = *bytes.pick(tensors);
    broken = bytes.chance(30) ? nullptr : arguments.of_other_form(*broken);
    const auto wrong = flexc_merge_states(parts.data(), count, o, lse, status.out());
    // Without parts and lse, any o has no results.
    if (count > 0 || broken == nullptr)
        status.refused(wrong, "a wrong merge");
    else
        status.done(wrong);
}

} // namespace flexc::fuzz
