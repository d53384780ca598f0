// The C interface: sequences of calls that the input decides, with arguments that are right, wrong
// or absurd. What must be refused is refused, and what is accepted stays inside its memory.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "call_changes.h"
#include "call_status.h"
#include "call_subjects.h"

namespace flexc::fuzz {

namespace {

constexpr std::int64_t kHeads = 2, kKvHeads = 1, kQueries = 5, kKeys = 7, kBatch = 2;

std::vector<std::int64_t> q_shape() { return {kBatch, kHeads, kQueries, kHeadDim}; }
std::vector<std::int64_t> kv_shape() { return {kBatch, kKvHeads, kKeys, kHeadDim}; }
std::vector<std::int64_t> row_shape() { return {kBatch, kHeads, kQueries}; }

flexc_sizes usual_sizes() {
    auto sizes = sized<flexc_sizes>();
    sizes.batch = kBatch;
    sizes.heads = kHeads;
    sizes.kv_heads = kKvHeads;
    sizes.q_len = kQueries;
    sizes.kv_len = kKeys;
    return sizes;
}

struct Program {
    const char* text;
    int buffers; // of bias: f32[H, KV_LEN] grad and doc: i32[KV_LEN], how many
};
constexpr std::array<Program, 6> kTexts = {
    {{"score * 2", 0},
     {"mask_mod = q_idx >= kv_idx", 0},
     {"param cap: f32 = 20.0\nscore_mod = cap * tanh(score / cap)", 0},
     {"buffer bias: f32[H, KV_LEN] grad\nscore_mod = score + bias[h, kv_idx]", 1},
     {"buffer bias: f32[H, KV_LEN] grad\nbuffer doc: i32[KV_LEN]\n"
      "score_mod = score + bias[h, kv_idx]\nmask_mod = doc[q_idx] == doc[kv_idx]",
      2},
     {"mask_mod = (q_idx * 7 + kv_idx * 3) % 4 != h", 0}}};

constexpr std::array<const char*, 6> kWrongTexts = {
    "", "score +", "fn f(x) = f(x)\nscore_mod = f(score)", "\xff\xfe", "score + t[h]", nullptr};
constexpr std::array<const char*, 7> kArchitectures = {nullptr, "",       "sm_80", "sm_90a",
                                                       "sm_75", "sm_99a", "a"};

void one_after_another(void*, std::int32_t count, void (*work)(void*, std::int32_t),
                       void* context) {
    for (std::int32_t i = 0; i < count; ++i)
        work(context, i);
}

class Session : private CallStatus {
  public:
    explicit Session(Arguments& arguments)
        : CallStatus(arguments.bytes()), arguments_(arguments), bytes_(arguments_.bytes()),
          random_(arguments_.random()) {}
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() {
        for (const Planned& each : plans_)
            flexc_plan_free(each.plan);
        for (const Compiled& each : kernels_)
            flexc_kernel_free(each.kernel);
        for (flexc_signature* each : signatures_)
            flexc_signature_free(each);
        flexc_library_free(library_);
        flexc_cancel_token_free(token_);
    }

    void run() {
        for (int calls = 0; calls < 40 && !bytes_.empty(); ++calls)
            one_call();
    }

  private:
    struct Compiled {
        flexc_kernel* kernel;
        const Program* program;
    };
    struct Planned {
        flexc_plan* plan;
        std::size_t kernel;
        bool is_usual; // of the sizes above
    };

    void one_call() {
        switch (bytes_.below(21)) {
        case 0: return compile_or_check(true);
        case 1: return compile_or_check(false);
        case 2: return look_at_signature();
        case 3: return look_at_kernel();
        case 4: return plan(true);
        case 5: return plan(false);
        case 6:
        case 7: return launch(true);
        case 8: return launch(false);
        case 9: return update();
        case 10: return nothing_given();
        case 11: return explain();
        case 12: return mask_map();
        case 13: return look_into_library();
        case 14: return supports();
        case 15: return look_at_machine();
        case 16:
        case 17: return call_with_requests(arguments_);
        case 18: return merge_results(arguments_);
        case 19: return call_with_ranks(arguments_);
        default: return free_one();
        }
    }

    // --- programs -----------------------------------------------------------------------------

    // A program and options for it; an unusual one has wrong ones among them.
    struct Question {
        const Program* program = nullptr;
        const char* text = nullptr;
        flexc_compile_options options{};
        bool is_usual = true;
        std::array<const char*, 2> dims{};
        flexc_buffer_declaration buffer = sized<flexc_buffer_declaration>();
        flexc_param_declaration param = sized<flexc_param_declaration>();
    };
    // Where it is, as options point into it.
    void ask(Question& one) {
        one.options = usual_options();
        // Few ways, so that most kernels are in the process's cache after some inputs.
        const std::size_t way = bytes_.below(6);
        one.options.forward_only = way == 1 ? 1 : 0;
        one.options.deterministic = way == 2 ? 1 : 0;
        one.options.report_out_of_range = way == 3 ? 1 : 0;
        one.options.mask_tiles = way == 4 ? FLEXC_MASK_TILES_BLOCK_MASK : 0;
        one.program = &bytes_.pick(kTexts);
        one.text = one.program->text;
        one.dims = {"H", bytes_.chance(50) ? "N" : "99999999999999999999"};
        while (bytes_.chance(25)) {
            one.is_usual = false;
            change_options(arguments_, one.options, one.buffer, one.param, one.dims.data());
            if (bytes_.chance(30)) one.text = bytes_.pick(kWrongTexts);
        }
        if (bytes_.chance(5)) {
            one.is_usual = false;
            one.options.cancel = token();
        }
    }

    void compile_or_check(bool compiles) {
        Question one;
        ask(one);
        const char* text = one.text;
        const flexc_compile_options& options = one.options;
        bool is_usual = one.is_usual;
        if (compiles) {
            flexc_kernel* kernel = nullptr;
            is_usual = is_usual && bytes_.chance(95);
            const bool ok =
                done(flexc_compile(text, is_usual ? &options : arguments_.given(options),
                                   bytes_.chance(98) ? &kernel : nullptr, out()));
            require(ok == (kernel != nullptr), "a kernel without success, or the reverse");
            if (!ok) return;
            if (is_usual && options.forward_only == 0)
                kernels_.push_back({kernel, one.program});
            else
                flexc_kernel_free(kernel);
            return;
        }
        flexc_signature* signature = nullptr;
        const bool ok = done(flexc_check(text, arguments_.given(options),
                                         bytes_.chance(98) ? &signature : nullptr, out()));
        require(ok == (signature != nullptr), "a signature without success, or the reverse");
        if (ok) signatures_.push_back(signature);
    }

    void look_at_signature() {
        const flexc_signature* signature =
            signatures_.empty() || bytes_.chance(5) ? nullptr : bytes_.pick(signatures_);
        auto info = sized<flexc_signature_info>();
        auto buffer = sized<flexc_buffer_info>();
        auto param = sized<flexc_param_info>();
        const auto index = static_cast<std::size_t>(bytes_.pick(kExtremes));
        done(flexc_signature_get(signature, arguments_.filled(info), out()));
        if (done(flexc_signature_buffer(signature, index, arguments_.filled(buffer), out())) &&
            buffer.struct_size == sizeof buffer)
            for (std::size_t i = 0; i < buffer.dim_count; ++i)
                require(std::strlen(buffer.dims[i]) > 0, "a dim has no name");
        done(flexc_signature_param(signature, index, arguments_.filled(param), out()));
        for (const char* text :
             {flexc_signature_size(signature, index), flexc_signature_warning(signature, index)})
            require(text == nullptr || *text != '\0', "an empty name");
    }

    void look_at_kernel() {
        const flexc_kernel* kernel =
            kernels_.empty() || bytes_.chance(5) ? nullptr : bytes_.pick(kernels_).kernel;
        auto info = sized<flexc_kernel_info>();
        auto function = sized<flexc_function_info>();
        std::int32_t happened = 0;
        done(flexc_kernel_get(kernel, arguments_.filled(info), out()));
        done(flexc_kernel_function(kernel, static_cast<std::size_t>(bytes_.pick(kExtremes)),
                                   arguments_.filled(function), out()));
        done(flexc_kernel_out_of_range(kernel, bytes_.chance(95) ? &happened : nullptr, out()));
    }

    // --- what surrounds kernels ---------------------------------------------------------------

    const flexc_cancel_token* token() {
        if (token_ == nullptr) token_ = flexc_cancel_token_create();
        if (bytes_.chance(50)) flexc_cancel(token_);
        return token_;
    }

    void explain() {
        constexpr std::array<const char*, 11> kStages = {
            "tokens", "ast", "ir", "grad", "deps", "mask", "plan", "cuda", "llvm", "", nullptr};
        Question one;
        ask(one);
        flexc_text* text = nullptr;
        const bool ok = done(
            flexc_explain(one.text, bytes_.pick(kStages), arguments_.given(one.options),
                          bytes_.pick(kArchitectures), bytes_.chance(98) ? &text : nullptr, out()));
        require(ok == (text != nullptr), "a text without success, or the reverse");
        require(std::strlen(flexc_text_data(text)) == flexc_text_size(text), "a text ends early");
        flexc_text_free(text);
    }

    void mask_map() {
        Question one;
        ask(one);
        auto sizes = usual_sizes();
        auto options = sized<flexc_plan_options>();
        auto cap = sized<flexc_param_value>();
        auto tile = sized<flexc_mask_tile>();
        tile.queries = bytes_.pick(kExtremes);
        tile.keys = bytes_.pick(kExtremes);
        Named buffers = buffers_of(*one.program);
        bool must_fail = tile.queries < 0 || tile.keys < 0;
        // Not of so many tiles that the time is up.
        const bool is_changed = bytes_.chance(30);
        if (is_changed) {
            must_fail = change_plan(arguments_, sizes, options, cap, buffers) || must_fail;
            constexpr std::int64_t kMost = 700;
            sizes.batch = std::min<std::int64_t>(sizes.batch, 3);
            sizes.heads = std::min<std::int64_t>(sizes.heads, 3);
            sizes.q_len = std::min(sizes.q_len, kMost);
            sizes.kv_len = std::min(sizes.kv_len, kMost);
        }
        flexc_mask_map* map = nullptr;
        const auto status = flexc_mask_map_create(
            one.text, arguments_.given(one.options), is_changed ? arguments_.given(sizes) : &sizes,
            buffers.data(), buffers.size(), is_changed ? nullptr : &tile,
            is_changed ? arguments_.given(options) : nullptr, bytes_.chance(98) ? &map : nullptr,
            out());
        const bool ok = done(status);
        require(ok == (map != nullptr), "a map without success, or the reverse");
        require(!ok || is_changed || !must_fail, "a tile without elements");
        auto info = sized<flexc_mask_info>();
        if (done(flexc_mask_map_get(map, arguments_.filled(info), out())) &&
            info.struct_size == sizeof info) {
            const auto tiles = info.batches * info.heads * info.query_tiles * info.key_tiles;
            require(std::strlen(info.tiles) == static_cast<std::size_t>(tiles), "not all tiles");
            require(std::strspn(info.tiles, "#/.") == static_cast<std::size_t>(tiles), "no tile");
        }
        flexc_mask_map_free(map);
    }

    void look_into_library() {
        constexpr std::array<const char*, 6> kNames = {"alibi", "SAM",  "alibbi",
                                                       "",      "\xff", nullptr};
        if (library_ == nullptr) done(flexc_library_create(&library_, out()));
        const flexc_library* library = bytes_.chance(5) ? nullptr : library_;
        auto entry = sized<flexc_library_entry>();
        const bool is_found =
            bytes_.chance(50)
                ? done(flexc_library_find(library, bytes_.pick(kNames), arguments_.filled(entry),
                                          out()))
                : done(flexc_library_get(library, static_cast<std::size_t>(bytes_.pick(kExtremes)),
                                         arguments_.filled(entry), out()));
        if (!is_found || entry.struct_size != sizeof entry) return;
        for (std::size_t i = 0; i < entry.also_called_count; ++i)
            require(std::strlen(entry.also_called[i]) > 0, "an empty name");
        flexc_signature* signature = nullptr;
        require(done(flexc_check(entry.text, nullptr, &signature, out())),
                "a mod of the library is no program");
        signatures_.push_back(signature);
    }

    void supports() {
        Question one;
        ask(one);
        const char* arch = bytes_.pick(kArchitectures);
        const auto* options = one.is_usual ? &one.options : arguments_.given(one.options);
        const bool can = done(flexc_supports(one.text, options, arch, out()));
        flexc_schedules* schedules = nullptr;
        if (done(flexc_schedules_create(one.text, arguments_.given(one.options), arch, &schedules,
                                        out())))
            for (std::size_t i = 0; i < flexc_schedules_count(schedules); ++i)
                require(flexc_schedules_get(schedules, i)[0] != '\0', "an empty schedule");
        require(flexc_schedules_get(schedules, flexc_schedules_count(schedules)) == nullptr,
                "a schedule behind the last");
        flexc_schedules_free(schedules);
        if (!one.is_usual) return;
        require(can || (arch != nullptr && *arch != '\0'), "a usual program is not supported");
        done(flexc_keep_schedule(one.text, &one.options, arch, out()));
    }

    void look_at_machine() {
        auto options = usual_options();
        auto info = sized<flexc_cache_info>();
        flexc_text* directory = nullptr;
        done(flexc_cache_get(arguments_.given(options), arguments_.filled(info), out()));
        done(flexc_cache_directory(arguments_.given(options),
                                   bytes_.chance(95) ? &directory : nullptr, out()));
        flexc_text_free(directory);
        if (bytes_.chance(1)) done(flexc_cache_clear(&options, out()));

        const std::int32_t device = bytes_.chance(80) ? FLEXC_DEVICE_CPU : small(bytes_);
        constexpr std::size_t kMost = 4096;
        std::array<unsigned char, kMost> host{};
        const std::size_t size = bytes_.below(kMost), given = bytes_.below(kMost);
        flexc_memory* memory = nullptr;
        if (done(flexc_memory_create(device, small(bytes_), size,
                                     bytes_.chance(95) ? &memory : nullptr, out())) &&
            device == FLEXC_DEVICE_CPU && flexc_memory_bytes(memory) > 0)
            std::memset(flexc_memory_data(memory), 1, flexc_memory_bytes(memory));
        void* const at = bytes_.chance(90) ? host.data() : nullptr;
        if (done(flexc_memory_upload(memory, at, given, out())))
            require(given <= size, "more is written than there is room");
        if (done(flexc_memory_download(memory, at, given, out())))
            require(given <= size, "more is read than there is");
        done(flexc_memory_fill(memory, static_cast<std::uint8_t>(small(bytes_)), out()));
        flexc_memory_free(memory);
        done(flexc_synchronize(device, small(bytes_), out()));

        flexc_doctor* doctor = nullptr;
        if (!bytes_.chance(5) || !done(flexc_doctor_create(&doctor, out()))) return;
        auto finding = sized<flexc_finding>();
        for (std::size_t i = 0; i < flexc_doctor_count(doctor); ++i)
            done(flexc_doctor_get(doctor, i, arguments_.filled(finding), out()));
        flexc_doctor_free(doctor);
    }

    // --- plans --------------------------------------------------------------------------------

    Named buffers_of(const Program& program) {
        Named result;
        if (program.buffers > 0)
            result.push_back(named("bias", arguments_.input(DType::f32, {kHeads, kKeys})));
        if (program.buffers > 1)
            result.push_back(named("doc", arguments_.input(DType::i32, {kKeys})));
        return result;
    }

    void plan(bool is_usual) {
        if (kernels_.empty()) return;
        const std::size_t at = bytes_.below(kernels_.size());
        if (kernels_[at].kernel == nullptr) return;
        auto sizes = usual_sizes();
        auto options = sized<flexc_plan_options>();
        auto cap = sized<flexc_param_value>();
        cap.name = "cap";
        const bool has_cap = std::strstr(kernels_[at].program->text, "param cap") != nullptr;
        if (has_cap && bytes_.chance(50)) {
            cap.value = real(random_, true);
            options.params = &cap;
            options.param_count = 1;
        }
        Named buffers = buffers_of(*kernels_[at].program);
        bool must_fail = false;
        if (bytes_.chance(30)) {
            options.cpu_threads = static_cast<std::int32_t>(bytes_.below(5));
            if (bytes_.chance(50)) options.parallel_for = one_after_another;
        }
        if (!is_usual)
            must_fail = change_plan(arguments_, sizes, options, cap, buffers);
        else if (bytes_.chance(40))
            buffers.clear();
        const flexc_plan_options* const given = is_usual ? &options : arguments_.given(options);
        // What was changed may lie behind the end of an older struct.
        must_fail = must_fail && given->struct_size >= sizeof options;
        flexc_plan* plan = nullptr;
        const auto status =
            flexc_plan_create(kernels_[at].kernel, is_usual ? &sizes : arguments_.given(sizes),
                              buffers.data(), buffers.size(), nullptr, given, &plan, out());
        if (must_fail) refused(status, "a plan that cannot be");
        if (is_usual) accepted(status, "a plan");
        const bool ok = done(status);
        require(ok == (plan != nullptr), "a plan without success, or the reverse");
        if (!ok) return;
        count_accepted();
        auto planned = sized<flexc_sizes>();
        if (done(flexc_plan_sizes(plan, arguments_.filled(planned), out())) &&
            planned.struct_size == sizeof planned)
            require(planned.q_len == sizes.q_len && planned.heads == sizes.heads,
                    "the plan has other sizes");
        plans_.push_back({plan, at, is_usual});
    }

    // --- launches -----------------------------------------------------------------------------

    const Planned* usual_plan() {
        for (std::size_t i = 0; i < plans_.size(); ++i) {
            const Planned& each = plans_[(i + bytes_.below(8)) % plans_.size()];
            if (each.is_usual && kernels_[each.kernel].kernel != nullptr) return &each;
        }
        return nullptr;
    }

    void update() {
        const Planned* planned = usual_plan();
        if (planned == nullptr) return;
        Named buffers = buffers_of(*kernels_[planned->kernel].program);
        const bool is_wrong =
            !buffers.empty() && bytes_.chance(30) && flexc_plan_block_mask_bytes(planned->plan) > 0;
        if (is_wrong) buffers.back().tensor = arguments_.wrong(*buffers.back().tensor);
        const auto status = flexc_plan_update(kernels_[planned->kernel].kernel, planned->plan,
                                              buffers.data(), buffers.size(), nullptr, out());
        // Without a block mask of its own a plan has nothing to update.
        if (is_wrong)
            done(status);
        else
            accepted(status, "an update");
    }

    void launch(bool is_usual) {
        const Planned* planned = usual_plan();
        if (planned == nullptr) return;
        const Compiled& compiled = kernels_[planned->kernel];
        Named buffers = buffers_of(*compiled.program);
        Named gradients;
        if (compiled.program->buffers > 0)
            gradients.push_back(named("bias", arguments_.output({kHeads, kKeys})));
        auto workspace = sized<flexc_workspace>();
        const Workspace memory = arguments_.workspace(flexc_plan_workspace_bytes(planned->plan));
        workspace.data = memory.data;
        workspace.bytes = memory.bytes;
        const flexc_plan* plan = planned->plan;
        auto call = sized<flexc_backward_tensors>();
        call.q = arguments_.input(DType::f32, q_shape());
        call.k = arguments_.input(DType::f32, kv_shape());
        call.v = arguments_.input(DType::f32, kv_shape());
        call.lse = arguments_.output(row_shape());
        call.o = arguments_.output(q_shape());
        call.d_out = arguments_.input(DType::f32, q_shape());
        // What is only read may be const.
        for (const flexc_tensor** input : {&call.q, &call.k, &call.v, &call.d_out})
            if (bytes_.chance(20)) *input = arguments_.read_only(**input);
        if (bytes_.chance(30)) call.d_lse = arguments_.input(DType::f32, row_shape());
        call.dq = arguments_.output(q_shape());
        call.dk = arguments_.output(kv_shape());
        call.dv = arguments_.output(kv_shape());
        const flexc_kernel* kernel = compiled.kernel;
        if (!is_usual) break_launch(arguments_, kernel, plan, call, buffers, workspace);
        auto forward = sized<flexc_forward_tensors>();
        forward.q = call.q;
        forward.k = call.k;
        forward.v = call.v;
        forward.o = call.o;
        forward.lse = call.lse;
        const auto status = flexc_forward(kernel, plan, &forward, buffers.data(), buffers.size(),
                                          &workspace, nullptr, out());
        if (!is_usual) return refused(status, "a wrong forward");
        accepted(status, "a forward");
        accepted(flexc_backward(kernel, plan, &call, buffers.data(), buffers.size(),
                                gradients.data(), gradients.size(), &workspace, nullptr, out()),
                 "a backward");
        if (bytes_.chance(50)) return;
        // One of the gradients, or what the forward does not have, is wrong.
        const std::array<const flexc_tensor**, 4> late = {&call.dq, &call.dk, &call.dv,
                                                          &call.d_out};
        const flexc_tensor*& broken = *bytes_.pick(late);
        if (&broken != &call.d_out && bytes_.chance(20))
            broken = arguments_.read_only(*broken);
        else
            broken = bytes_.chance(80) ? arguments_.wrong(*broken) : nullptr;
        refused(flexc_backward(kernel, plan, &call, buffers.data(), buffers.size(),
                               gradients.data(), gradients.size(), &workspace, nullptr, out()),
                "a wrong backward");
    }

    // --- ends ---------------------------------------------------------------------------------

    void nothing_given() {
        flexc_kernel_free(nullptr);
        flexc_plan_free(nullptr);
        flexc_signature_free(nullptr);
        flexc_error_free(nullptr);
        flexc_text_free(nullptr);
        flexc_mask_map_free(nullptr);
        flexc_library_free(nullptr);
        flexc_memory_free(nullptr);
        require(flexc_plan_workspace_bytes(nullptr) == 0 &&
                    flexc_plan_block_mask_bytes(nullptr) == 0,
                "no plan has bytes");
        refused(flexc_compile(nullptr, nullptr, nullptr, out()), "nothing");
        refused(flexc_check(nullptr, nullptr, nullptr, out()), "nothing");
        refused(flexc_forward(nullptr, nullptr, nullptr, nullptr, 0, nullptr, nullptr, out()),
                "nothing");
        refused(flexc_plan_create(nullptr, nullptr, nullptr, bytes_.below(3), nullptr, nullptr,
                                  nullptr, out()),
                "nothing");
    }

    void free_one() {
        // Plans keep what they need of a kernel that is freed.
        if (bytes_.chance(50) && !plans_.empty()) {
            const std::size_t at = bytes_.below(plans_.size());
            flexc_plan_free(plans_[at].plan);
            plans_.erase(plans_.begin() + static_cast<std::ptrdiff_t>(at));
        } else if (!kernels_.empty()) {
            Compiled& one = kernels_[bytes_.below(kernels_.size())];
            flexc_kernel_free(one.kernel);
            one.kernel = nullptr;
        }
    }

    Arguments& arguments_;
    Bytes& bytes_;
    Random& random_;
    std::vector<Compiled> kernels_;
    std::vector<Planned> plans_;
    std::vector<flexc_signature*> signatures_;
    flexc_library* library_ = nullptr;
    flexc_cancel_token* token_ = nullptr;
};

void run_calls(std::string_view input) {
    Arguments arguments(input);
    Session(arguments).run();
}

// Any bytes are calls. They begin with what is needed for the others to mean something.
Corpus call_corpus() {
    Corpus corpus;
    Random random(1);
    for (int i = 0; i < 40; ++i) {
        std::string bytes;
        for (auto size = random.integer(20, 600); size > 0; --size)
            bytes += static_cast<char>(random.integer(0, 255));
        corpus.push_back(bytes);
    }
    return corpus;
}

} // namespace

const Target kCalls = {.name = "calls",
                       .meaning = "the C interface",
                       .cpu_seconds = 5,
                       .corpus = call_corpus,
                       .mutate = mutate_bytes,
                       .run = run_calls};

} // namespace flexc::fuzz
